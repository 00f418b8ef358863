"""Reward models: a language model with one number for its head, which learns which of two completions is better."""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import PreferenceBatch
from kanawa.errors import ModuleError

from kanawa_layers.losses.preference import sigmoid
from kanawa_layers.models.encoder import EncoderLM
from kanawa_layers.models.head import Head
from kanawa_layers.models.masked_head import FirstTokenPooler
from kanawa_layers.models.preference_loss import PairLoss


class RewardHead(Head):
    """A projection to one number a token; that of a sequence's last token is its reward. `logits` are [..., 1].

    It starts at zero, so that no completion is better than another before training.
    """

    class Config(Head.Config):
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"kernel": kn.foreign.Tensor(name="weight", form=kn.foreign.Matrix.Config())}
        )

    def setup(self) -> None:
        """Declares the weight, [embed, 1]."""
        self.add_param("kernel", (self.config.input_dim, 1), axes=("embed", None), init=kn.zeros)

    def weight(self) -> Float[Array, "E 1"]:
        """Returns the projection."""
        return self.param("kernel")

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs a weight."""
        del context_length
        return float(2.0 * self.config.input_dim)


class RewardLoss(PairLoss):
    """-log sigmoid(chosen - rejected reward - margin) of each pair (Bradley-Terry; arXiv:2203.02155, equation 1).

    A reward is the head's number at a segment's last token, so rows have to hold that token as an input. `centre` holds
    rewards near 0: it is the coefficient of the squared sum of a pair's rewards (arXiv:2312.09244, section 3).
    """

    class Config(PairLoss.Config):
        margin: kn.NonNegative = 0.0
        centre: kn.NonNegative = 0.0

    def forward(self, x: Float[Array, "B T E"], head: Head, batch: Any) -> None:
        """Adds the loss and records rewards; raises ModuleError for a batch without pairs."""
        if not isinstance(batch, PreferenceBatch):
            message = (
                f"{self.path}: a reward model is trained and evaluated on pairs, but this batch is a "
                f"{type(batch).__name__}; name records of preferences with --data"
            )
            raise ModuleError(message)
        rewards = self.emit("rewards", segment_rewards(x, head, batch)).reshape(*batch.labels.shape, 2)
        there = (batch.labels != 0).astype(jnp.float32)
        count = jnp.sum(there)
        difference = rewards[..., 0] - rewards[..., 1]
        self.add_mean("reward", sigmoid(difference - self.config.margin), batch)
        if self.config.centre:
            squared = jnp.square(rewards[..., 0] + rewards[..., 1])
            self.add_loss("centre", jnp.sum(squared * there), count, self.config.centre)
        figures = {"margin": difference, "accuracy": (difference > 0).astype(jnp.float32)}
        figures |= {"chosen_reward": rewards[..., 0], "rejected_reward": rewards[..., 1]}
        for name, value in figures.items():
            self.record(name, kn.Mean(jnp.sum(value * there), count))


def segment_rewards(x: Float[Array, "B T E"], head: Head, batch: PreferenceBatch) -> Float[Array, "B S"]:
    """Returns the head's number at the last token of each segment, fp32; of segments that a row lacks, any number."""
    segments = jnp.arange(1, 2 * batch.labels.shape[1] + 1, dtype=batch.segment_ids.dtype)
    places = jnp.arange(x.shape[1], dtype=jnp.int32)[None, :, None]
    last = jnp.max(jnp.where(batch.segment_ids[:, :, None] == segments[None, None], places, 0), axis=1)
    ends: jax.Array = jnp.take_along_axis(x, last[:, :, None], axis=1)
    return head.logits(ends)[..., 0]


def as_reward_model(model: Any) -> Any:
    """Returns the config of a decoder, changed to have a head of one number, which other libraries call `score`."""
    return _with_head(model, RewardHead.Config(), "score")


def as_language_model(model: Any, head: Head.Config) -> Any:
    """Returns the config of a reward model or classifier, changed to have a head over tokens, or an encoder's none."""
    if isinstance(model, EncoderLM.Config):
        # The bare encoder, which is what classifiers of that kind are saved around.
        return _with_head(model.set(pooler=model.pooler or FirstTokenPooler.Config()), None, "cls.predictions")
    return _with_head(model, head, "lm_head")


def _with_head(model: Any, head: Head.Config | None, name: str) -> Any:
    names = model.foreign.clone()
    names.set(children={**names.children, "head": name})
    return model.set(head=head, foreign=names)
