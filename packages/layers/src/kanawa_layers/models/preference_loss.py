"""Losses of preferences: pairs of completions, or single ones judged good or bad, packed as segments of rows."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Batch, PreferenceBatch
from kanawa.errors import ModuleError

from kanawa_layers.losses.preference import kto, log_odds, segment_sums, sigmoid
from kanawa_layers.models.head import Head
from kanawa_layers.models.reference import Reference, target_logprobs
from kanawa_layers.models.token_loss import TokenLoss


class Pairs(NamedTuple):
    """Sums over the weighted targets of each pair's two segments, fp32; `labels` are 0 where a row has no such pair."""

    logprobs: Float[Array, "B P 2"]
    counts: Float[Array, "B P 2"]
    labels: Float[Array, "B P"]

    @property
    def means(self) -> Float[Array, "B P 2"]:
        """Mean log-probabilities of a token."""
        return self.logprobs / jnp.maximum(self.counts, 1.0)


class PairLoss(TokenLoss):
    """Base of losses of a PreferenceBatch that are a mean over pairs."""

    batch = PreferenceBatch

    @kn.nowrap
    def add_mean(self, name: str, values: Float[Array, "B P"], batch: PreferenceBatch) -> None:
        """Adds the mean of `values` over the pairs that there are as the primary loss, and records it by source."""
        there = batch.labels != 0
        sums, counts = jnp.sum(jnp.where(there, values, 0.0), axis=1), jnp.sum(there.astype(jnp.float32), axis=1)
        self.add_loss(name, jnp.sum(sums), jnp.sum(counts), self.config.coefficient, primary=True)
        if batch.sources is not None:
            self.record_by_source(sums, counts, batch.sources)


class PreferenceLoss(PairLoss):
    """Base of losses of log-probabilities: the mean over pairs, so that any sharding and accumulation give the same.

    Held-out pairs have the same loss and figures. A plain Batch outside of training has its cross entropy. It emits
    `logprobs` of the targets, fp32 [batch, length], and `segment_logprobs`, [batch, 2 pairs].
    """

    @abc.abstractmethod
    def add_terms(self, pairs: Pairs, batch: PreferenceBatch) -> None:
        """Adds the loss and records figures."""

    def forward(self, x: Float[Array, "B T E"], head: Head, batch: Any) -> None:
        """Adds the objective; raises ModuleError where a training batch has no pairs."""
        logprobs = self.emit("logprobs", self.logprobs_of(x, head, batch))
        if not isinstance(batch, PreferenceBatch):
            if self.train:
                message = (
                    f"{self.path}: {type(self).__name__} learns from pairs, but this batch is a "
                    f"{type(batch).__name__}; name records of preferences with --data"
                )
                raise ModuleError(message)
            weights = batch.loss_weights
            self.add_loss("cross_entropy", -jnp.sum(logprobs * weights), jnp.sum(weights), primary=True)
            return
        sums = self.emit("segment_logprobs", by_segment(logprobs, batch))
        counts = segment_sums(batch.loss_weights, batch.segment_ids, sums.shape[1])
        shape = (*batch.labels.shape, 2)
        self.add_terms(Pairs(sums.reshape(shape), counts.reshape(shape), batch.labels), batch)

    @kn.nowrap
    def logprobs_of(self, x: Float[Array, "B T E"], head: Head, batch: Any) -> Float[Array, "B T"]:
        """Returns the log-probability of each target, without gradients through what isn't learned."""
        learned = self.learned_length(batch)
        if learned is None:
            return target_logprobs(x, head, batch)
        first, rest = (
            target_logprobs(x[:, part], head, batch._replace(target_ids=batch.target_ids[:, part]))
            for part in (slice(0, learned), slice(learned, None))
        )
        return jnp.concatenate([first, jax.lax.stop_gradient(rest)], axis=1)

    @kn.nowrap
    def record_pairs(self, pairs: Pairs, rewards: Float[Array, "B P 2"]) -> None:
        """Records what both completions of a pair got: margin, accuracy, rewards and log-probabilities."""
        there = (pairs.labels != 0).astype(jnp.float32)
        count = jnp.sum(there)
        margin = rewards[..., 0] - rewards[..., 1]
        figures = {
            "margin": margin,
            "accuracy": (margin > 0).astype(jnp.float32),
            "chosen_reward": rewards[..., 0],
            "rejected_reward": rewards[..., 1],
            "chosen_logprob": pairs.logprobs[..., 0],
            "rejected_logprob": pairs.logprobs[..., 1],
        }
        for name, value in figures.items():
            self.record(name, kn.Mean(jnp.sum(value * there), count))


def by_segment(logprobs: Float[Array, "B T"], batch: PreferenceBatch) -> Float[Array, "B S"]:
    """Returns the sums of the weighted targets' log-probabilities by segment, fp32."""
    # Chosen, not multiplied: zero times infinity is NaN.
    weighted = jnp.where(batch.loss_weights > 0, logprobs, 0.0)
    return segment_sums(weighted, batch.segment_ids, 2 * batch.labels.shape[1])


class ReferencedLoss(PreferenceLoss):
    """Base of losses that compare the policy with a reference; without one of its own, batches have to bring its sums.

    Sums of a batch come first: they were computed in advance.
    """

    reference: Reference | None

    class Config(PreferenceLoss.Config):
        beta: kn.Positive = 0.1
        reference: Reference.Config | None = None

    def setup(self) -> None:
        """Declares the reference."""
        self.add_child("reference", self.config.reference)

    @kn.nowrap
    def reference_logprobs(self, reference: Reference, batch: PreferenceBatch) -> Float[Array, "B T"]:
        """Returns the reference's log-probability of each target."""
        return reference(batch)

    @kn.nowrap
    def ratios(self, pairs: Pairs, batch: PreferenceBatch) -> Float[Array, "B P 2"]:
        """Returns log p(completion) - log p_reference(completion); raises ModuleError without a reference."""
        if batch.reference_logprobs is not None:
            sums = batch.reference_logprobs
        elif self.reference is not None:
            sums = by_segment(self.reference_logprobs(self.reference, batch), batch)
        else:
            message = (
                f"{self.path} has no reference, and the batch brings no reference_logprobs; set "
                "reference=adapter-off, reference=frozen or reference=precomputed"
            )
            raise ModuleError(message)
        return pairs.logprobs - jax.lax.stop_gradient(sums.reshape(pairs.logprobs.shape))


class DPO(ReferencedLoss):
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290, equation 7).

    `objective` is any function (difference of log-ratios, beta, smoothing) -> loss of each pair: `sigmoid`, `hinge`,
    `squared` (IPO). Rewards are beta log(p / p_reference).
    """

    class Config(ReferencedLoss.Config):
        objective: Callable[..., Any] = sigmoid
        label_smoothing: kn.Partial = 0.0

    def add_terms(self, pairs: Pairs, batch: PreferenceBatch) -> None:
        """Adds the loss of each pair."""
        cfg, ratios = self.config, self.ratios(pairs, batch)
        values = cfg.objective(ratios[..., 0] - ratios[..., 1], cfg.beta, cfg.label_smoothing)
        self.add_mean("dpo", values, batch)
        self.record_pairs(pairs, cfg.beta * ratios)


class SimPO(PreferenceLoss):
    """-log sigmoid(beta (mean log p chosen - mean log p rejected) - target) (arXiv:2405.14734, equation 6).

    Needs no reference. `target` is gamma, the margin to reach.
    """

    class Config(PreferenceLoss.Config):
        beta: kn.Positive = 2.0
        target: kn.NonNegative = 1.0

    def add_terms(self, pairs: Pairs, batch: PreferenceBatch) -> None:
        """Adds the loss of each pair."""
        rewards = self.config.beta * pairs.means
        self.add_mean("simpo", sigmoid(rewards[..., 0] - rewards[..., 1] - self.config.target), batch)
        self.record_pairs(pairs, rewards)


class ORPO(PreferenceLoss):
    """Mean NLL of the chosen completion's tokens, plus beta times -log sigmoid of the log odds ratio.

    arXiv:2403.07691, equations 6 and 7. Needs no reference. Each pair's NLL is a mean over its own tokens.
    """

    class Config(PreferenceLoss.Config):
        beta: kn.Positive = 0.1

    def add_terms(self, pairs: Pairs, batch: PreferenceBatch) -> None:
        """Adds the likelihood of the chosen completion and the odds ratio."""
        odds, beta = log_odds(pairs.means), self.config.beta
        ratio = sigmoid(odds[..., 0] - odds[..., 1])
        self.add_mean("orpo", beta * ratio - pairs.means[..., 0], batch)
        there = (pairs.labels != 0).astype(jnp.float32)
        self.record("odds_ratio_loss", kn.Mean(jnp.sum(ratio * there), jnp.sum(there)))
        self.record_pairs(pairs, beta * pairs.means)


class KTO(ReferencedLoss):
    """Kahneman-Tversky optimisation of single completions, good or bad (arXiv:2402.01306, equation 8).

    The divergence z is the mean log-ratio over the mismatched second segments, not below 0, of all rows that are
    computed at once: with gradient accumulation, of a microbatch. No gradient passes through them, and none is
    computed: the second half of each row holds nothing else. `good_weight` and `bad_weight` are the paper's lambdas;
    they balance unequal numbers of both.
    """

    class Config(ReferencedLoss.Config):
        good_weight: kn.Positive = 1.0
        bad_weight: kn.Positive = 1.0

    @kn.nowrap
    def learned_length(self, batch: Any) -> int | None:
        """Returns the half of a row that holds the judged completions."""
        return batch.input_ids.shape[1] // 2 if isinstance(batch, PreferenceBatch) else None

    @kn.nowrap
    def reference_logprobs(self, reference: Reference, batch: PreferenceBatch) -> Float[Array, "B T"]:
        """Returns the reference's log-probability of each target, by rows of a half: attention is quadratic in them."""
        rows, length = batch.input_ids.shape
        halves = Batch(*(x.reshape(2 * rows, length // 2) for x in batch[:5]))
        return reference(halves).reshape(rows, length)

    def add_terms(self, pairs: Pairs, batch: PreferenceBatch) -> None:
        """Adds the loss of each completion; the mismatched ones only set the scale."""
        cfg, ratios = self.config, self.ratios(pairs, batch)
        there = (pairs.labels != 0).astype(jnp.float32)
        count = jnp.maximum(jnp.sum(there), 1.0)
        divergence = jax.lax.stop_gradient(jnp.maximum(jnp.sum(ratios[..., 1] * there) / count, 0.0))
        rewards = cfg.beta * ratios[..., 0]
        values = kto(rewards, cfg.beta * divergence, pairs.labels, cfg.good_weight, cfg.bad_weight)
        self.add_mean("kto", values, batch)
        self.record("divergence", kn.Mean(divergence * count, count))
        right = ((rewards - cfg.beta * divergence) * pairs.labels > 0).astype(jnp.float32)
        self.record("accuracy", kn.Mean(jnp.sum(right * there), jnp.sum(there)))
        for name, sign in (("chosen", 1.0), ("rejected", -1.0)):
            mine = (pairs.labels == sign).astype(jnp.float32)
            self.record(f"{name}_reward", kn.Mean(jnp.sum(rewards * mine), jnp.sum(mine)))
            self.record(f"{name}_logprob", kn.Mean(jnp.sum(pairs.logprobs[..., 0] * mine), jnp.sum(mine)))
