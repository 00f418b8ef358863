"""What published programs do otherwise than ours, each by a flag of its recipe: no figure is fitted to it."""

import dataclasses
import re
from typing import Any

from kanawa.plugins import Calibration
from kanawa_parallel.plan.quick.walk import Walked

#: Of a row's `program`: what a flag of the recipe says that the program doesn't do, and what then nothing hides.
_WHOLE = {"overlaps_tensor": "waited_share", "fuses": "fused_share"}


def calibrated(row: dict[str, Any], calibration: Calibration) -> Calibration:
    """Returns the calibration for a program without the overlap or the fusions that its recipe leaves out."""
    without = (share for name, share in _WHOLE.items() if not row.get("program", {}).get(name, True))
    return dataclasses.replace(calibration, **dict.fromkeys(without, 1.0))


def gather_narrow(row: dict[str, Any], walked: Walked) -> None:
    """Halves the bytes of gathered experts where they are quantised first: under static scales MaxText's grouped matmul
    gathers the fp8 values (`weight_gather_axes` in its kernels/megablox/ops.py), which no form of ours does.
    """
    experts = row["shape"].get("experts")
    if not experts or not re.search(r"fp8.*static scales", row.get("precision", "")):
        return
    for step in walked.steps:
        step.moves = [
            (at, dataclasses.replace(move, bytes=move.bytes / 2) if _is_experts(step, at, move, experts) else move)
            for at, move in step.moves
        ]
        for _, inner in step.inner:
            gather_narrow(row, inner)


def _is_experts(step: Any, at: int, move: Any, experts: int) -> bool:
    value = step.equation.inputs[at]
    return move.kind == "all-gather" and value is not None and value.bits == 16 and value.shape[:1] == (experts,)
