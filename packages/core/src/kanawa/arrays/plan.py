"""The ExecutionPlan: all that decides how a program runs, hashable and part of the jit cache key.

It travels in a JAX user context. A plain ContextVar would go stale: a function traced under one plan
would be served from the cache under another.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

from kanawa.arrays.distributed import Distributed
from kanawa.arrays.precision import Precision
from kanawa.arrays.rules import Rules
from kanawa.plugins.records import ProgramTraits, Purpose

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

    `purpose` is what programs are for, set by the code that builds them; `traits` is what the target's compiler needs
    of them, asked of its backend.
    `optimizer_memory` says where optimizer state is stored between steps (kanawa.arrays.memory).
    `distributed` holds strategies' implementations of operations over shards.

    `platform` and `device_kind` are None where the process's own devices run the program.
    """

    param_rules: Rules = ()
    activation_rules: Rules = ()
    precision: Precision = Precision()
    kernels: KernelPolicy = KernelPolicy()
    distributed: tuple[Distributed, ...] = ()
    platform: str | None = None
    device_kind: str | None = None
    optimizer_memory: str = "device"
    purpose: Purpose = "train"
    traits: ProgramTraits = ProgramTraits()

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
