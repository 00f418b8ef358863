"""Ring attention (Liu et al. 2023, arXiv:2310.01889), with its own backward and load-balanced causal order."""

from kanawa.arrays.rules import Rules
from kanawa.contracts import Distributed, Strategy

from kanawa_parallel.context.looped import RingLoop
from kanawa_parallel.rules import BATCH, LENGTH


class RingAttention(Strategy):
    """Splits sequences over `context`; in attention, keys and values go around the shards, a hop a step.

    Each hop runs while the shard attends to what it has. `balanced` evens out the work of a causal mask.
    """

    class Config(Strategy.Config):
        balanced: bool = True

    def param_rules(self) -> Rules:
        """Returns no rules: `context` holds whole parameters."""
        return ()

    def activation_rules(self) -> Rules:
        """Returns the split of rows and positions."""
        return (*BATCH, *LENGTH)

    def distributed(self) -> tuple[Distributed, ...]:
        """Returns the ring."""
        return (RingLoop(balanced=self.config.balanced),)
