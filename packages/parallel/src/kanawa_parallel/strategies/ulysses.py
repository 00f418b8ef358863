"""Ulysses: all-to-all between a split of positions and a split of heads (Jacobs et al. 2023, arXiv:2309.14509)."""

from kanawa.contracts import Distributed

from kanawa_parallel.context.ulysses import UlyssesExchange
from kanawa_parallel.rules import SplitPositions


class UlyssesAttention(SplitPositions):
    """Splits sequences over `context`; in attention, every shard has whole sequences of a part of the heads.

    Any kernel and mask apply unchanged; `context` times `tensor` must divide the query heads.
    """

    def distributed(self) -> tuple[Distributed, ...]:
        """Returns the exchange."""
        return (UlyssesExchange(),)
