"""Rules that several strategies share: what splits rows and positions is one rule, however many strategies say it."""

from kanawa.arrays.rules import Rules
from kanawa.contracts import Strategy

#: Every axis that holds different rows, outermost first. Axes that a mesh lacks don't count.
BATCH: Rules = (("batch", ("replica", "data", "fsdp", "expert")),)
#: Positions between layers; the second rule of TensorParallel adds its own axis.
LENGTH: Rules = (("length", ("context",)),)


class SplitPositions(Strategy):
    """What strategies of context parallelism share: rows and positions are split, `context` holds whole parameters."""

    def param_rules(self) -> Rules:
        """Returns no rules."""
        return ()

    def activation_rules(self) -> Rules:
        """Returns the split of rows and positions."""
        return (*BATCH, *LENGTH)
