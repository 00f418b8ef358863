"""The idle share of a pipeline, asked of the config's own schedule."""

from collections.abc import Mapping
from typing import Any


def bubble_share(config: Any, mesh: Mapping[str, int]) -> float:
    """Returns the part of a pipelined step's ticks in which a stage has nothing to do; 0 without a pipeline.

    A stack or gradient strategy that pipelines answers `bubble_share(stages)`; its loops run idle ticks as if they
    were work, so the share is of the time that the loops take.
    """
    stages = mesh.get("stage", 1)
    if stages <= 1:
        return 0.0
    for node in (config.gradients, config.model):
        for _, found in node.walk():
            ask = getattr(found._target, "bubble_share", None) if hasattr(found, "_target") else None
            if ask is not None:
                return float(ask(found, stages))
    return 0.0
