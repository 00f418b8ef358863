"""The kernels a run has chosen, saved with every checkpoint: installing another changes a resumed run only if asked."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from kanawa.contracts import Environment
from kanawa.kernels import KernelChoice

#: The member of a checkpoint's meta record.
KERNELS = "kernels"


class KernelRecord:
    """(operation, problem) to kernel, as chosen on one platform; kernels of another say nothing here."""

    def __init__(self, platform: str, chosen: Mapping[tuple[str, str], str] | None = None) -> None:
        self.platform = platform
        self._chosen = dict(chosen or {})

    @classmethod
    def of(cls, meta: Mapping[str, Any], platform: str) -> "KernelRecord":
        """Returns the record of a checkpoint; an empty one where it has none for this platform."""
        kept = meta.get(KERNELS, {})
        if kept.get("platform") != platform:
            return cls(platform)
        return cls(platform, {(operation, problem): kernel for operation, problem, kernel in kept["chosen"]})

    def add(self, choices: Iterable[KernelChoice]) -> list[KernelChoice]:
        """Takes the choices of a program; returns those for problems that were not met before in this attempt."""
        new = [choice for choice in choices if self._chosen.get((choice.operation, choice.problem)) != choice.kernel]
        self._chosen.update({(choice.operation, choice.problem): choice.kernel for choice in choices})
        return new

    def applied(self, where: Environment) -> Environment:
        """Returns the environment in which the recorded choices are kept."""
        recorded = tuple((*met, kernel) for met, kernel in self._chosen.items())
        policy = dataclasses.replace(where.plan.kernels, recorded=recorded)
        return dataclasses.replace(where, plan=dataclasses.replace(where.plan, kernels=policy))

    def as_json(self) -> dict[str, Any]:
        """Returns what a checkpoint's meta record holds."""
        return {"platform": self.platform, "chosen": [[*met, kernel] for met, kernel in self._chosen.items()]}
