"""The contract of a language model's loss slot, and a sum of several losses."""

import abc

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Batch

from kanawa_layers.models.head import Head


class TokenLoss(kn.Module):
    """Adds loss terms and metrics for the last hidden states of a batch, each term times `coefficient`."""

    class Config(kn.Module.Config):
        coefficient: kn.NonNegative = 1.0

    @abc.abstractmethod
    def forward(self, x: Float[Array, "B T E"], head: Head, batch: Batch) -> None:
        """Adds the terms of the logits that `head` computes; all sums are over weighted tokens."""


class SumOfLosses(TokenLoss):
    """The sum of several losses of the same hidden states, `terms[i]`; the first is primary."""

    terms: tuple[TokenLoss, ...]

    class Config(TokenLoss.Config):
        terms: tuple[TokenLoss.Config, ...] = kn.REQUIRED

        def check(self) -> list[str]:
            """Returns what is wrong with the terms: an outer coefficient would be ignored."""
            problems = [] if self.terms else ["terms is empty, expected at least one loss"]
            if self.coefficient != 1.0:
                problems.append("coefficient is set on a sum; set it on each term")
            return problems

    def setup(self) -> None:
        """Declares the terms."""
        for i, term in enumerate(self.config.terms):
            self.add_child(f"terms[{i}]", term)

    def forward(self, x: Float[Array, "B T E"], head: Head, batch: Batch) -> None:
        """Adds every term."""
        for term in self.terms:
            term(x, head, batch)
