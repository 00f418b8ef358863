"""What can be wrong with a learner."""

from sashimono.errors import SashimonoError, UsageError


class OptimizerStateError(SashimonoError):
    """An optimizer's state doesn't fit the optimizer."""


class ParameterRuleError(UsageError):
    """A rule for parameters matches none, or leaves none to train."""
