"""Expert parallelism (GShard, arXiv:2006.16668), dropless by ragged all-to-all."""

from kanawa.arrays.rules import Rules
from kanawa.config import Positive
from kanawa.contracts import Distributed, Strategy

from kanawa_parallel.experts.exchange import ExpertsOverShards
from kanawa_parallel.rules import BATCH


class ExpertParallel(Strategy):
    """Splits the experts of every mixture over `expert`; outside of mixtures that axis splits the batch.

    Each shard routes its own tokens, and their rows travel to the experts' shards and back. On a mesh without the axis
    every shard runs all experts on its own tokens. `capacity_factor` limits a shard's rows to this multiple of an even
    load's, drops the rest and records `dropped_rows`; None drops nothing. `exchange=False` gathers the experts' weights
    instead of sending rows; None does that where it takes less time by the device's figures.
    """

    class Config(Strategy.Config):
        capacity_factor: Positive | None = None
        exchange: bool | None = None

        def check(self) -> list[str]:
            """Returns what is wrong: without an exchange no shard receives rows that it could drop."""
            both = self.exchange is False and self.capacity_factor is not None
            return ["capacity_factor drops rows that are exchanged; with exchange=False leave it out"] * both

    def param_rules(self) -> Rules:
        """Returns where experts lie."""
        return (("experts", ("expert",)),)

    def activation_rules(self) -> Rules:
        """Returns the split of rows, and of arrays with one part an expert."""
        return (*BATCH, ("experts", ("expert",)))

    def distributed(self) -> tuple[Distributed, ...]:
        """Returns the exchange around experts."""
        return (ExpertsOverShards(capacity_factor=self.config.capacity_factor, exchange=self.config.exchange),)
