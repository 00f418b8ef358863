"""What is planned: an experiment with its changes, and which of its programs."""

import dataclasses
from collections.abc import Sequence

from kanawa.composition.experiment import Composition

from kanawa_parallel.plan.programs.compositions import compositions
from kanawa_parallel.plan.programs.decode import DECODE


@dataclasses.dataclass(frozen=True)
class PlanRequest:
    """The arguments of `plan` that say what is planned, apart from the target."""

    experiment: str
    modifiers: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    data: str | None = None
    program: str = "train_step"

    @property
    def serves(self) -> bool:
        """Whether a decoding step is planned, and not a training step."""
        return self.program == DECODE

    def composed(self, targets: Sequence[str], changes: Sequence[str] = ()) -> list[Composition]:
        """Returns one composition a target, with more modifiers; raises CompositionError with all problems."""
        modifiers = [*self.modifiers, *changes]
        return compositions(self.experiment, targets, modifiers, self.overrides, self.data)

    def words(self, target: str, changes: Sequence[str] = ()) -> list[str]:
        """Returns the words of a command line that say the same."""
        words = [self.experiment, "--on", target]
        words += [word for each in (*self.modifiers, *changes) for word in ("--modify", each)]
        words += [word for each in self.overrides for word in ("--set", each)]
        return words if self.data is None else [*words, "--data", self.data]
