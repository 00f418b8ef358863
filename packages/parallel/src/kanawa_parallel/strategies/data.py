"""Data parallelism: every device holds the whole model and a part of the batch."""

from kanawa.arrays.rules import Rules
from kanawa.contracts import Strategy

from kanawa_parallel.rules import BATCH


class DataParallel(Strategy):
    """Splits the batch over `replica` and `data`; gradients are summed by the compiler."""

    def param_rules(self) -> Rules:
        """Returns no rules: parameters are replicated."""
        return ()

    def activation_rules(self) -> Rules:
        """Returns the batch's axes."""
        return BATCH
