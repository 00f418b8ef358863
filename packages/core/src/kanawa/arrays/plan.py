"""The ExecutionPlan: all that decides how a program runs, hashable and part of the jit cache key.

It travels in a JAX user context. A plain ContextVar would go stale: a function traced under one plan
would be served from the cache under another.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

from kanawa.arrays.precision import Precision
from kanawa.arrays.rules import Rules

#: (operation, problem as text, kernel name, what it is run with beside its own choice).
KernelUse = tuple[str, str, str, tuple[tuple[str, int], ...]]


@dataclasses.dataclass(frozen=True)
class KernelPolicy:
    """Which kernels a user insists on: `pins` are (operation, kernel name); `require_fused` refuses fallbacks.

    `recorded` are (operation, problem as text, kernel name, tuning) that a run chose before: kept while they can be,
    and a choice's note says why where they can't. `measured` are the same, found quickest on this device before: they
    come before the kernels' own ranking.
    `survey` has programs traced to see what is chosen: general kernels stand in for the chosen ones, whose platform's
    libraries may be missing here.
    """

    pins: tuple[tuple[str, str], ...] = ()
    require_fused: bool = False
    recorded: tuple[KernelUse, ...] = ()
    measured: tuple[KernelUse, ...] = ()
    survey: bool = False


@dataclasses.dataclass(frozen=True)
class ExecutionPlan:
    """Sharding rules for parameters and activations, precision, kernels, and the platform compiled for.

    `optimizer_memory` says where optimizer state waits between steps (kanawa.arrays.memory).
    `materialize` has training write to memory what enters a projection, and keep the residual stream row by row
    (kanawa.arrays.materialize).
    `native_products` has projections and logits computed beside XLA (kanawa.arrays.products), on one CPU; None leaves
    it to kernels whose operands are one device's.
    `few_rows` says that products of a few rows with a weight are what counts, as in serving, and has them computed by
    whatever is quickest for so many.
    `unroll_layers` is how many layers a loop over layers may have to be written out instead.
    `distributed` holds strategies' implementations of operations over shards (kanawa.contracts.Distributed).

    `platform` and `device_kind` are None where the process's own devices run the program.
    """

    param_rules: Rules = ()
    activation_rules: Rules = ()
    precision: Precision = Precision()
    kernels: KernelPolicy = KernelPolicy()
    distributed: tuple[Any, ...] = ()
    platform: str | None = None
    device_kind: str | None = None
    optimizer_memory: str = "device"
    materialize: bool = False
    native_products: bool | None = None
    few_rows: bool = False
    unroll_layers: int = 0

    def way(self, operation: str) -> Any:
        """Returns the first of `distributed` that runs the operation ("attention", "experts"), or None."""
        return next((way for way in self.distributed if way.operation == operation), None)


_plan = jax.make_user_context(default_value=None)
_default = ExecutionPlan()


def current_plan() -> ExecutionPlan:
    """Returns the plan in force; the default plan (fp32, no sharding) outside of `use_plan`."""
    return _plan.value or _default


@contextlib.contextmanager
def use_plan(plan: ExecutionPlan) -> Iterator[ExecutionPlan]:
    """Puts `plan` in force for everything traced inside."""
    with _plan(plan):
        yield plan
