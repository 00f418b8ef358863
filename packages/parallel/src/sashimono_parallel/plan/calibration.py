"""What estimates leave out, per device family: one factor, from one published step.

A factor is published seconds by estimated seconds of the same workload on the same chips. Others' published runs used
their own programs, so a factor also holds what theirs did worse or better than ours.
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
    """A family's factor on estimated seconds, and what it was taken from; 1 where nothing is published."""

    factor: float = 1.0
    source: str = "not calibrated"


#: Device family to factor. How each was found is in benchmarks/results/; benchmarks/plan_headlines.py finds it anew.
FACTORS: dict[str, Calibration] = {}


def calibration(family: str) -> Calibration:
    """Returns the family's calibration."""
    return FACTORS.get(family, Calibration())


def published(experiment: str, target: str) -> Published | None:
    """Returns what is published for a workload, if anything."""
    return next((p for p in PUBLISHED if (p.experiment, p.target) == (experiment, target)), None)
