"""Pallas attention in the interpreter on problems that core's kit generates, against the reference in fp64."""

from typing import Any, ClassVar

from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Tuning
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_gpu.kernels.attention.pallas import PallasAttention


class Interpreted(PallasAttention):
    """The same kernel without a GPU, in tiles of which a few rows make several."""

    interpret: ClassVar[bool] = True
    tuning: Tuning = tuple(
        (f"{part}_{side}", size)
        for part in ("forward", "queries", "keys")
        for side, size in (("queries", 64), ("keys", 32))
    )


class TestPallasAttention(KernelConformance):
    """Lengths are short: the interpreter takes a second for what a GPU does in microseconds."""

    narrow: ClassVar[dict[str, tuple[Any, ...]]] = {
        "mode": ("train", "prefill"),
        "q_length": (64, 96, 75),
        "kv_length": (None, 128, 100),
        "batch": (2, 1),
        "heads": ((4, 2), (3, 1), (2, 2)),
        "page_size": (None,),
        "ragged_sequences": (None,),
    }
    generated: ClassVar[int] = 8

    def kernel(self) -> PallasAttention:
        return Interpreted()

    def problems(self) -> tuple[AttentionProblem, ...]:
        # Core's fixed list runs nightly in a GPU's own tiles (test_pallas_attention.py).
        return ()
