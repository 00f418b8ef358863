"""How far quick plans were from compiled ones, by kind of program; docs/results/plan-accuracy.md has the tables.

Nothing is said of a program of another kind: what was measured for one says nothing about the next.
"""

import dataclasses
from collections.abc import Collection, Sequence

from kanawa.kernels.choice import KernelChoice
from kanawa.plugins.devices import OWN

from kanawa_parallel.plan.cost.kernel_cost import operation_of
from kanawa_parallel.plan.quick.walk import Walked

_REFERENCE = "attention.any.reference"
#: What the models that were compared are made of.
_DENSE = frozenset(("attention", "matmul", "softmax_cross_entropy"))


@dataclasses.dataclass(frozen=True)
class Compared:
    """Quick plans of training steps of one kind beside compiled ones.

    Attributes:
        written: whether attention is the reference, which writes its scores to memory.
        looped: whether the layers are a loop, or each is written out.
        own: whether the target was this machine's processor.
        axes: of the mesh; others have size 1.
        programs: how many were compared.
        memory, seconds: the lowest and the highest of quick by compiled, less 1.
    """

    written: bool
    looped: bool
    own: bool
    axes: Collection[str]
    programs: int
    memory: tuple[float, float]
    seconds: tuple[float, float]
    operations: Collection[str] = _DENSE

    def __str__(self) -> str:
        (low, high), (short, long) = self.memory, self.seconds
        return (
            f"memory was {low:+.0%} to {high:+.0%} and time {short:+.0%} to {long:+.0%} off in {self.programs} such "
            "programs that were compiled"
        )


_SHARDED = ("replica", "data", "fsdp")
KINDS = (
    Compared(False, True, False, _SHARDED, 6, (-0.08, -0.01), (-0.31, -0.09)),
    Compared(False, True, False, _SHARDED, 2, (-0.15, -0.14), (-0.20, 0.04), (*_DENSE, "grouped_matmul")),
    Compared(True, True, False, (*_SHARDED, "tensor"), 21, (-0.22, 0.35), (-0.47, 0.01)),
    # A processor's compiler writes out few layers and recomputes them early: what remat saves is not saved.
    Compared(True, False, True, (*_SHARDED, "tensor"), 6, (-0.74, -0.17), (-0.04, 0.00)),
    Compared(False, False, True, (*_SHARDED, "tensor"), 4, (-0.70, -0.41), (-0.04, 0.00)),
)


def accuracy(program: str, choices: Sequence[KernelChoice], platform: str, walked: Walked) -> str:
    """Returns what is known of a quick plan's error, as a clause of a sentence."""
    page = "docs/results/plan-accuracy.md"
    known = compared(choices, platform, walked) if program == "train_step" else None
    if known is None:
        return f"programs of this kind were not compared with compiled plans, so no error bound is known ({page})"
    return f"{known} ({page})"


def compared(choices: Sequence[KernelChoice], platform: str, walked: Walked) -> Compared | None:
    """Returns the kind that a training step is of; None where none such was compared."""
    attention = {choice.kernel for choice in choices if choice.operation == "attention"}
    operations = {choice.operation for choice in choices}
    # A mixture of both is neither.
    if not attention or (_REFERENCE in attention and len(attention) > 1):
        return None
    split = {name for name, size in walked.mesh.items() if size > 1}
    asked = _REFERENCE in attention, _in_loop(walked), platform == OWN
    kinds = (kind for kind in KINDS if (kind.written, kind.looped, kind.own) == asked)
    return next((kind for kind in kinds if split <= set(kind.axes) and operations <= set(kind.operations)), None)


def _in_loop(walked: Walked, inside: bool = False) -> bool:
    """Returns whether attention is computed inside a loop."""
    return any(
        (inside and operation_of(step.equation.path) == "attention")
        or any(_in_loop(inner, step.equation.name == "scan" or inside) for _, inner in step.inner)
        for step in walked.steps
    )
