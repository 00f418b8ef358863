"""Ulysses: all-to-all between a split of positions and a split of heads (Jacobs et al. 2023, arXiv:2309.14509)."""

from kanawa.arrays.rules import Rules
from kanawa.contracts import Distributed, Strategy

from kanawa_parallel.context.ulysses import UlyssesExchange
from kanawa_parallel.rules import BATCH, LENGTH


class UlyssesAttention(Strategy):
    """Splits sequences over `context`; in attention, every shard has whole sequences of a part of the heads.

    Any kernel and mask apply unchanged; `context` times `tensor` must divide the query heads.
    """

    def param_rules(self) -> Rules:
        """Returns no rules: `context` holds whole parameters."""
        return ()

    def activation_rules(self) -> Rules:
        """Returns the split of rows and positions."""
        return (*BATCH, *LENGTH)

    def distributed(self) -> tuple[Distributed, ...]:
        """Returns the exchange."""
        return (UlyssesExchange(),)
