"""The kernels a run has chosen, saved with every checkpoint: installing another changes a resumed run only if asked."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from kanawa.contracts import Environment
from kanawa.kernels import KernelChoice

#: The member of a checkpoint's meta record.
KERNELS = "kernels"
_Chosen = tuple[str, tuple[tuple[str, int], ...]]


class KernelRecord:
    """(operation, problem) to kernel and tuning, as chosen on one platform; those of another say nothing here."""

    def __init__(self, platform: str, chosen: Mapping[tuple[str, str], _Chosen] | None = None) -> None:
        self.platform = platform
        self._chosen = dict(chosen or {})

    @classmethod
    def of(cls, meta: Mapping[str, Any], platform: str) -> "KernelRecord":
        """Returns the record of a checkpoint; an empty one where it has none for this platform."""
        kept = meta.get(KERNELS, {})
        if kept.get("platform") != platform:
            return cls(platform)
        # Checkpoints of older versions name no tuning.
        chosen = {
            (operation, problem): (kernel, tuple(sorted((rest[0] if rest else {}).items())))
            for operation, problem, kernel, *rest in kept["chosen"]
        }
        return cls(platform, chosen)

    def add(self, choices: Iterable[KernelChoice]) -> list[KernelChoice]:
        """Takes the choices of a program; returns those for problems that were not met before in this attempt."""
        new = []
        for choice in choices:
            met, use = (choice.operation, choice.problem), (choice.kernel, choice.tuning)
            if self._chosen.get(met) != use:
                new.append(choice)
            self._chosen[met] = use
        return new

    def applied(self, where: Environment) -> Environment:
        """Returns the environment in which the recorded choices are kept."""
        recorded = tuple((*met, *use) for met, use in self._chosen.items())
        policy = dataclasses.replace(where.plan.kernels, recorded=recorded)
        return dataclasses.replace(where, plan=dataclasses.replace(where.plan, kernels=policy))

    def as_json(self) -> dict[str, Any]:
        """Returns what a checkpoint's meta record holds."""
        chosen = [[*met, kernel, dict(tuning)] for met, (kernel, tuning) in self._chosen.items()]
        return {"platform": self.platform, "chosen": chosen}
