"""What a plugin is asked that places experiments: a target, and the experiment as each choice would make it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from kanawa.composition.target import Target
from kanawa.config import Config
from kanawa.plugins import MeshRule, host
from kanawa.plugins.records import Purpose


@dataclasses.dataclass(frozen=True)
class PlacementQuestion:
    """Where no rule of the user fits: which mesh and modifiers suit the experiment on the target.

    `rule` is the shipped rule that fits best, with the mesh that the model's sizes divide by; None for none. With a
    choice (a MeshRule without a -1), `config` is the experiment's config, modifiers and overrides of the user applied
    last and nothing checked; `composed` the checked `Composition`. Both raise KanawaError where the choice doesn't fit.
    """

    target: Target
    purpose: Purpose
    rule: MeshRule | None
    config: Callable[[MeshRule], Config]
    composed: Callable[[MeshRule], Any]


def placed(question: PlacementQuestion) -> MeshRule | None:
    """Returns the first plugin's answer; None where nobody has one, and the shipped rule decides."""
    answers: list[tuple[str, MeshRule]] = host().collect("kanawa_placement", question=question)
    for plugin, rule in answers:
        return dataclasses.replace(rule, distribution=plugin.partition(":")[0])
    return None
