"""Texts that belong together get vectors that are near: contrastive training of text embeddings, in packed rows."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import PreferenceBatch
from kanawa.errors import ConfigError, ModuleError

from kanawa_layers.losses.passed_around import softmax_contrastive_over_devices
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.encoder import EncoderLM
from kanawa_layers.models.preference_loss import PairLoss


class EmbeddingLoss(PairLoss):
    """Each text of a pair picks its partner among all of the batch (Karpukhin et al. 2020, arXiv:2004.04906).

    Pairs are neighbouring segments of packed rows. A segment's vector is the mean of its states, or its first or last
    one, of length 1; `scale` multiplies cosines, as a temperature of 1 / scale does. It reads no head. Evaluation also
    has the `accuracy`: how often a pair's second text is the nearest to its first.
    """

    reads_stream = True

    class Config(PairLoss.Config):
        pooling: Literal["mean", "first", "last"] = "mean"
        scale: kn.Positive = 20.0

    def forward(self, x: Float[Array, "B T E"], head: Any, batch: Any) -> None:
        """Adds the mean of both directions' cross entropy; raises ModuleError where a batch has no pairs."""
        del head
        if not isinstance(batch, PreferenceBatch):
            found = type(batch).__name__
            message = f"{self.path}: embeddings are learned from pairs of texts, and this batch is a {found}"
            raise ModuleError(message)
        rows, pairs = batch.labels.shape
        vectors = self._pooled(x, batch).reshape(rows * pairs, 2, -1)
        left, right = (kn.constrain(vectors[:, side], ("batch", None)) for side in range(2))
        valid = (batch.labels != 0).reshape(-1)
        scale = jnp.asarray(self.config.scale, jnp.float32)
        nats = softmax_contrastive_over_devices(left, right, scale, valid)
        self.add_mean("contrastive", nats.reshape(rows, pairs), batch)
        if not self.train:
            nearest = jnp.argmax(jnp.where(valid[None], left @ right.T, -2.0), axis=1)
            right_ones = valid & (nearest == jnp.arange(rows * pairs))
            sums = (jnp.sum(which, dtype=jnp.float32) for which in (right_ones, valid))
            self.record("accuracy", kn.Mean(*sums))

    def _pooled(self, x: Float[Array, "B T E"], batch: PreferenceBatch) -> Float[Array, "B S E"]:
        """Returns each segment's vector, fp32, of length 1; zeros of segments that a row doesn't have."""
        numbers = jnp.arange(1, 2 * batch.labels.shape[1] + 1, dtype=batch.segment_ids.dtype)
        own = batch.segment_ids[:, None] == numbers[None, :, None]
        length, there = x.shape[1], jnp.any(own, axis=-1)
        if self.config.pooling != "mean":
            first = self.config.pooling == "first"
            place = jnp.argmax(own, axis=-1) if first else length - 1 - jnp.argmax(own[..., ::-1], axis=-1)
            own = there[..., None] & (jnp.arange(length)[None, None] == place[..., None])
        # The mean and the sum have one direction.
        summed = jnp.einsum("bst,bte->bse", own.astype(jnp.float32), x.astype(jnp.float32))
        unit: jax.Array = summed * jax.lax.rsqrt(jnp.sum(summed * summed, axis=-1, keepdims=True) + 1e-12)
        return unit


def as_embedder(model: Any, pooling: Literal["mean", "first", "last"], scale: float) -> Any:
    """Returns the config of an encoder or a decoder, changed to learn embeddings; an encoder loses its head.

    Raises ConfigError for another kind of model.
    """
    if not isinstance(model, EncoderLM.Config | DecoderLM.Config):
        message = f"embed: {type(model).__qualname__} is neither an encoder nor a decoder of text"
        raise ConfigError(message)
    model.set(loss=EmbeddingLoss.Config(pooling=pooling, scale=scale))
    if isinstance(model, EncoderLM.Config):
        model.set(head=None, transform=None, pooler=None)
    return model
