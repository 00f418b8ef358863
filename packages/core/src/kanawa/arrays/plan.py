"""The ExecutionPlan: everything that decides how a program runs, hashable and part of the jit cache key.

It travels in a JAX user context. A plain ContextVar would go stale: a function traced under one plan
would be served from the cache under another.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import jax

from kanawa.arrays.precision import Precision
from kanawa.arrays.rules import Rules
from kanawa.plugins.records import ProgramTraits, Purpose

#: (operation, problem as text, kernel name, tuning).
KernelUse = tuple[str, str, str, tuple[tuple[str, int], ...]]


class Distributed(abc.ABC):
    """A strategy's implementation of an operation over the shards of an axis on which each shard's result depends.

    Instances are part of the execution plan and thus of jit's cache key: make them frozen dataclasses. `through` takes
    what the operation's call has (attention: problem and operands, of the whole sequence) and returns its output;
    attention's may be None, where it doesn't apply.
    """

    #: The operation: "attention" or "experts" (TokenDispatcher).
    operation: ClassVar[str]
    #: Its name in the kernel manifest, such as "ring".
    name: ClassVar[str]


@dataclasses.dataclass(frozen=True)
class KernelPolicy:
    """How kernels are chosen.

    Attributes:
        pins: (operation, kernel name) pairs that the user requires.
        require_fused: whether a kernel that isn't fused is an error where fused ones are expected.
        recorded: what this run chose before. Used again if possible, otherwise the choice's note says why not.
        measured: what was fastest on this device; ranked before the kernels' own priorities.
        survey: whether the program is traced only to see the choices. General kernels then replace the chosen ones,
            whose platform's libraries may be missing here.
    """

    pins: tuple[tuple[str, str], ...] = ()
    require_fused: bool = False
    recorded: tuple[KernelUse, ...] = ()
    measured: tuple[KernelUse, ...] = ()
    survey: bool = False


@dataclasses.dataclass(frozen=True)
class ExecutionPlan:
    """How a program runs.

    Attributes:
        param_rules, activation_rules: sharding rules of parameters and activations.
        precision: dtypes to compute and accumulate in.
        kernels: how kernels are chosen.
        distributed: strategies' implementations of operations over shards.
        platform, device_kind: the devices compiled for; None if this process's devices run the program.
        optimizer_memory: where optimizer state is stored between steps (kanawa.arrays.optimizer_state).
        purpose: what the program is for, set by the code that builds it.
        traits: what the target's compiler needs of the program, answered by its backend.
        row_invariant: whether a row of a matmul's or attention's result should have the same bits however many rows are
            computed with it, for what purpose and from whatever cache: kernels that promise it are preferred.
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
    row_invariant: bool = False

    def distributed_over_shards(self, operation: str) -> Any:
        """Returns the first of `distributed` that runs the operation ("attention", "experts"), or None."""
        return next((each for each in self.distributed if each.operation == operation), None)


_plan = jax.make_user_context(default_value=None)
_default = ExecutionPlan()


def current_plan() -> ExecutionPlan:
    """Returns the active plan; the default plan (fp32, no sharding) outside of `use_plan`."""
    return _plan.value or _default


@contextlib.contextmanager
def use_plan(plan: ExecutionPlan) -> Iterator[ExecutionPlan]:
    """Activates `plan` for everything traced inside."""
    with _plan(plan):
        yield plan
