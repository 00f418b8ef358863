"""What no compiler estimates, per device family: the share of peak that kernels reach, from one published step.

On TPUs that is Pallas kernels; elsewhere, where compilers estimate nothing, all matmuls. Others' published runs used
their own programs, so a share also holds what theirs did worse or better than ours.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Published:
    """A published training step: seconds for one batch on a target, and where it is written."""

    experiment: str
    target: str
    seconds: float
    source: str


_PAPER = "AXLearn (MLSys 2026), tables of end-to-end training"
#: What others published for our headline workloads.
PUBLISHED = (
    Published("llama2-7b", "v5p-512", 2.5, _PAPER),
    Published("llama2-70b", "v5p-1024", 11.6, _PAPER),
    Published("llama2-7b", "h100-256", 1.4, _PAPER),
    Published("llama2-70b", "h100-512", 9.2, _PAPER),
    Published("qwen3-30b-a3b", "v5p-1024", 12.86, _PAPER),
    Published("qwen3-30b-a3b", "b200-512", 4.31, _PAPER),
    Published("llama2-7b", "trn2-1024", 1.2, _PAPER),
    Published("llama2-70b", "trn2-1024", 11.2, _PAPER),
)


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A family's share of peak, and what it was taken from; 1 where nothing is published."""

    efficiency: float = 1.0
    source: str = "not calibrated"


#: Device family to share. How each was found is in docs/results/; benchmarks/plan_headlines.py finds it anew.
SHARES: dict[str, Calibration] = {
    "tpu-3d": Calibration(0.521, "llama2-7b on v5p-512: 2.5 s published"),
    "hopper": Calibration(0.672, "llama2-7b on h100-256: 1.4 s published"),
    "blackwell": Calibration(0.346, "qwen3-30b-a3b on b200-512: 4.31 s published"),
}


def calibration(family: str) -> Calibration:
    """Returns the family's calibration."""
    return SHARES.get(family, Calibration())


def share_of_peak(published_seconds: float, estimated_seconds: float, unestimated_seconds: float) -> float:
    """Returns the share of peak at which an estimate made at peak takes the published time; at most 1."""
    rest = estimated_seconds - unestimated_seconds
    return min(1.0, unestimated_seconds / max(published_seconds - rest, 1e-9))


def published(experiment: str, target: str) -> Published | None:
    """Returns what is published for a workload, if anything."""
    return next((p for p in PUBLISHED if (p.experiment, p.target) == (experiment, target)), None)
