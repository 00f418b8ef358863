"""What goes wrong with rollouts."""

from kanawa.errors import KanawaError


class RewardError(KanawaError):
    """A reward raised, or gave no finite number."""


class RolloutError(KanawaError):
    """A rollout can't be made of a prompt."""
