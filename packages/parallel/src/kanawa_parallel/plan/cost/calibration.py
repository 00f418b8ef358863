"""Plans held against what was measured: the share of peak that explains a published step, and which steps there are.

No compiler estimates what a fused kernel takes on a TPU, nor any matmul elsewhere. A device's `share_of_peak` stands
for that. Others' published runs used their own programs, so a share also holds what theirs did worse or better.
"""

from kanawa.plugins import PublishedStep, host


def published_steps() -> list[PublishedStep]:
    """Returns every published step that installed plugins know."""
    return [step for _, steps in host().collect("kanawa_published_steps") for step in steps]


def published(experiment: str, target: str) -> PublishedStep | None:
    """Returns what is published for a workload as it stands, if anything."""
    return next((step for step in published_steps() if (step.experiment, step.target) == (experiment, target)), None)


def share_of_peak(published_seconds: float, estimated_seconds: float, unestimated_seconds: float) -> float:
    """Returns the share of peak at which an estimate made at peak takes the published time; at most 1."""
    # published = rest + unestimated / share, solved for the share; a run quicker than its estimate at peak gives 1.
    rest = estimated_seconds - unestimated_seconds
    return min(1.0, unestimated_seconds / max(published_seconds - rest, 1e-9))
