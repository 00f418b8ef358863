"""Ring attention (Liu et al. 2023, arXiv:2310.01889), with its own backward and load-balanced causal order."""

from kanawa.contracts import Distributed

from kanawa_parallel.context.looped import RingLoop
from kanawa_parallel.rules import SplitPositions


class RingAttention(SplitPositions):
    """Splits sequences over `context`; in attention, keys and values go around the shards, a hop a step.

    Each hop runs while the shard attends to what it has. `balanced` evens out the work of a causal mask.
    """

    class Config(SplitPositions.Config):
        balanced: bool = True

    def distributed(self) -> tuple[Distributed, ...]:
        """Returns the ring."""
        return (RingLoop(balanced=self.config.balanced),)
