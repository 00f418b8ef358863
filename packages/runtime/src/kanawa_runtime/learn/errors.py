"""What can be wrong with a learner."""

from kanawa.errors import UsageError


class ParameterRuleError(UsageError):
    """A rule for parameters matches none, or leaves none to train."""
