"""What can be wrong with a learner."""

from sashimono.errors import UsageError


class ParameterRuleError(UsageError):
    """A rule for parameters matches none, or leaves none to train."""
