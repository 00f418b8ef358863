"""Context parallelism that gathers keys and values (Llama 3, arXiv:2407.21783, section 3.3.2)."""

from kanawa.contracts import Distributed

from kanawa_parallel.context.looped import GatherLoop
from kanawa_parallel.rules import SplitPositions


class AllGatherAttention(SplitPositions):
    """Splits sequences over `context`; in attention, every shard gathers the keys and values of all.

    One collective instead of a ring's hops, worth it where key heads are few; for the time of one attention a shard
    holds the whole sequence's keys. Nothing gathered is saved for the backward pass.
    """

    class Config(SplitPositions.Config):
        balanced: bool = True

    def distributed(self) -> tuple[Distributed, ...]:
        """Returns the gathering loop."""
        return (GatherLoop(balanced=self.config.balanced),)
