"""Counts a system over the grid of models and variants, and fits what it finds."""

from dataclasses import dataclass
from typing import Protocol

from loc_complexity.cost import Cost, Tree, cost
from loc_complexity.features import FEATURES, VARIANTS, Feature
from loc_complexity.fit import Fit, fit
from loc_complexity.zoo import MODELS


class System(Protocol):
    """A way to add features to models."""

    name: str
    configuration: tuple[str, ...]
    side_tables: tuple[str, ...]

    def before(self, num_models: int) -> Tree:
        """Returns the tree without the feature."""

    def after(self, feature: Feature, num_models: int, num_variants: int) -> Tree:
        """Returns the tree with it on in every model."""


@dataclass(frozen=True)
class Measurement:
    """One feature in one system: costs by (N, M), the fit of I + C + S, and that of D."""

    system: str
    feature: str
    costs: dict[tuple[int, int], Cost]
    spread: Fit
    definition: Fit


def measured(system: System, feature: Feature) -> Measurement:
    """Returns the measurement over the whole grid."""
    costs = {}
    for n in MODELS:
        before = system.before(n)
        for m in VARIANTS:
            after = system.after(feature, n, m)
            costs[n, m] = cost(before, after, system.configuration, system.side_tables)
    spread = fit({at: c.spread for at, c in costs.items()})
    return Measurement(system.name, feature.name, costs, spread, fit({at: c.definition for at, c in costs.items()}))


def everything(systems: tuple[System, ...]) -> list[Measurement]:
    """Returns every feature in every system."""
    return [measured(system, feature) for system in systems for feature in FEATURES]
