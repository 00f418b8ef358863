"""The contract of a model's loss slot, token-weighted cross entropy without storing all logits, and a sum of losses."""

import abc
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import SOURCE_LOSS, Batch
from kanawa.contracts.batch import DRAWN_ACCURACY, DrawnTargets
from kanawa.kernels.softmax_cross_entropy import softmax_cross_entropy

from kanawa_layers.losses.by_token import cross_entropy_by_token
from kanawa_layers.models.head import Head


class TokenLoss(kn.Module):
    """Adds loss terms and metrics for the last hidden states of a batch, each term times `coefficient`."""

    #: The record it trains on.
    batch: ClassVar[type] = Batch
    #: Whether it reads the stream itself, and no head.
    reads_stream: ClassVar[bool] = False

    class Config(kn.Module.Config):
        coefficient: kn.Strength = 1.0

    @abc.abstractmethod
    def forward(self, x: Float[Array, "B T E"], head: Any, batch: Batch) -> None:
        """Adds the terms of the logits that `head` computes (None with `reads_stream`), sums over weighted tokens."""

    @classmethod
    def hidden_token(cls, cfg: Any) -> int | None:
        """Returns the id that stands for a token to be filled in; None of a loss whose model continues texts."""
        del cfg
        return None

    @kn.nowrap
    def learned_length(self, batch: Any) -> int | None:
        """Returns how many positions of a row gradients pass through, those after them only being measured; None: all.

        No segment crosses that place.
        """
        del batch
        return None

    @kn.nowrap
    def record_by_source(
        self, sums: Float[Array, " B"], weights: Float[Array, " B"], sources: Float[Array, "B S"]
    ) -> None:  # fmt: skip
        """Records the mean loss of each source, from the sums of losses and weights of each row."""
        totals, counts = (jnp.sum(row[:, None] * sources, axis=0) for row in (sums, weights))
        for number in range(totals.shape[0]):
            self.record(f"{SOURCE_LOSS}{number}", kn.Mean(totals[number], counts[number]))


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


class CrossEntropy(TokenLoss):
    """Mean negative log-likelihood over the batch's weighted tokens, fp32.

    `z_loss` and `label_smoothing` shape the training loss only; evaluation reports the plain likelihood.
    """

    class Config(TokenLoss.Config):
        z_loss: kn.NonNegative = 0.0
        label_smoothing: kn.Partial = 0.0

    def forward(self, x: Float[Array, "B T E"], head: Head, batch: Batch) -> None:
        """Adds the loss of the logits that `head` computes."""
        cfg, train = self.config, self.train
        targets, plain = batch.target_ids, not train
        if isinstance(batch, DrawnTargets):
            targets, plain = drawn_targets(head, x, self.next_key()), True
            correct = jnp.sum(jnp.where(targets == batch.target_ids, batch.loss_weights, 0.0))
            self.record(DRAWN_ACCURACY, kn.Mean(correct, jnp.sum(batch.loss_weights)))
        # The scale multiplies [B, T, E], since logits, [B, T, V], never exist as a whole.
        operands = (head.scaled(x), head.weight(), targets, batch.loss_weights)
        options: dict[str, Any] = {
            "tied": head.tied,
            "logit_cap": head.config.logit_cap,
            "z_loss": 0.0 if plain else cfg.z_loss,
            "label_smoothing": 0.0 if plain else cfg.label_smoothing,
        }
        # What curvature is measured on is no loss to report.
        sources = None if isinstance(batch, DrawnTargets) else getattr(batch, "sources", None)
        if sources is None:
            total, count, extra = softmax_cross_entropy(*operands, **options)
        else:
            total, count, extra, each = cross_entropy_by_token(*operands, **options)
            rows = jnp.sum(each * batch.loss_weights, axis=-1), jnp.sum(batch.loss_weights, axis=-1)
            self.record_by_source(*rows, sources)
        self.add_loss("cross_entropy", total, count, cfg.coefficient, primary=True)
        if not train:
            self.record("accuracy", kn.Mean(extra["correct"], count))
        elif cfg.z_loss or cfg.label_smoothing:
            self.record("nll", kn.Mean(extra["nll"], count))


#: Positions whose logits exist at one time while targets are drawn.
_DRAWN_TOGETHER = 256


def drawn_targets(head: Head, x: Float[Array, "B T E"], key: jax.Array) -> Int[Array, "B T"]:
    """Returns one target for each position, drawn from the distribution that `head` gives, int32."""
    rows, length, _ = x.shape
    x = jax.lax.stop_gradient(x)
    if length <= _DRAWN_TOGETHER or length % _DRAWN_TOGETHER:
        return jax.random.categorical(key, head.logits(x)).astype(jnp.int32)
    parts = length // _DRAWN_TOGETHER
    pieces = jnp.moveaxis(x.reshape(rows, parts, _DRAWN_TOGETHER, -1), 1, 0)

    def draw(carry: None, piece: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        hidden, own_key = piece
        return carry, jax.random.categorical(own_key, head.logits(hidden)).astype(jnp.int32)

    drawn: jax.Array = kn.scan(draw, None, (pieces, jax.random.split(key, parts)))[1]
    return jnp.moveaxis(drawn, 0, 1).reshape(rows, length)
