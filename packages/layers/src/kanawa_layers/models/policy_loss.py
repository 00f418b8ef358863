"""The loss of a policy that learns from its own rollouts: GRPO, and its variants by config."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import Batch, RolloutBatch
from kanawa.errors import ModuleError

from kanawa_layers.losses.policy import Sums, k3_divergence, per_sequence, token_ratio, truncated_importance
from kanawa_layers.models.head import Head
from kanawa_layers.models.repeated_draws import repeated_draws
from kanawa_layers.models.target_nll import target_nll
from kanawa_layers.models.token_loss import TokenLoss


class PolicyLoss(TokenLoss):
    """PPO's clipped objective over the sampled tokens of a RolloutBatch (GRPO: DeepSeekMath, arXiv:2402.03300).

    `aggregation` reduces them to one number: `per_sequence`, `per_token`, `per_row`, or any function (values, weights)
    -> (sum, weight). `objective` gives the values: `token_ratio`, `sequence_ratio` (GSPO), `clipped_weight` (CISPO), or
    any function (logprobs, old, advantages, weights, clip_low, clip_high) -> (values, clipped). `kl` is the coefficient
    of the k3 estimate of the divergence from the batch's reference. With `truncation`, each token is weighted by the
    ratio of the trainer's probability to the sampler's, at most that much.
    Outside of training it is the plain cross entropy. It emits `logprobs`, fp32 [batch, length], and of a batch with
    `draw_keys` also `choices`, int32 [batch, length]: what this model draws by them.
    """

    class Config(TokenLoss.Config):
        clip_low: kn.Fraction = 0.2
        clip_high: kn.Positive = 0.2
        kl: kn.NonNegative = 0.0
        truncation: kn.Positive | None = None
        objective: Callable[..., tuple[jax.Array, jax.Array]] = token_ratio
        aggregation: Callable[..., Sums] = per_sequence

    def forward(self, x: Float[Array, "B T E"], head: Head, batch: Batch | RolloutBatch) -> None:
        """Adds the objective; raises ModuleError where a training batch has no rollouts."""
        cfg, weights = self.config, batch.loss_weights
        cap = head.config.logit_cap
        keys = batch.draw_keys if isinstance(batch, RolloutBatch) else None
        if keys is None:
            logprobs = -target_nll(head.scaled(x), head.weight(), batch.target_ids, head.tied, cap)
        else:
            operands = head.scaled(x), head.weight(), batch.target_ids, keys
            logprobs, choices = repeated_draws(*operands, head.tied, cap)
            self.emit("choices", choices)
        logprobs = self.emit("logprobs", logprobs)
        if not self.train:
            self.add_loss("cross_entropy", -jnp.sum(logprobs * weights), jnp.sum(weights), primary=True)
            return
        if not isinstance(batch, RolloutBatch):
            message = (
                f"{self.path}: a policy learns from its own rollouts, but this batch is a {type(batch).__name__}; fill "
                "the experiment's slot `rollouts` with --modify grpo:reward=NAME"
            )
            raise ModuleError(message)
        if batch.places is not None:
            # The objective and its sums are of whole rollouts: a row of each, wherever the model has met it.
            logprobs, batch = by_rollout(logprobs, batch, batch.places)
            weights = batch.loss_weights
        now = jax.lax.stop_gradient(logprobs)

        # Tokens of weight 0 must be finite as well: zero times infinity is NaN.
        def only_drawn(values: jax.Array) -> jax.Array:
            return jnp.where(weights > 0, values, now)

        old = now if batch.old_logprobs is None else only_drawn(batch.old_logprobs)
        values, clipped = cfg.objective(logprobs, old, batch.advantages, weights, cfg.clip_low, cfg.clip_high)
        if cfg.truncation is not None:
            values = values * truncated_importance(old, batch.sampled_logprobs, cfg.truncation)
        total, weight = cfg.aggregation(values, weights)
        self.add_loss("policy", total, weight, cfg.coefficient, primary=True)
        count = jnp.sum(weights)
        self.record("clipped", kn.Mean(jnp.sum(clipped * weights), count))
        if cfg.kl and batch.reference_logprobs is None:
            message = f"{self.path}.kl is {cfg.kl}, but the batch has no reference; set rollouts.reference=true"
            raise ModuleError(message)
        if batch.reference_logprobs is not None:
            divergence = k3_divergence(logprobs, only_drawn(batch.reference_logprobs))
            total, weight = cfg.aggregation(divergence, weights)
            self.add_loss("kl", total, weight, cfg.kl)
        difference = jnp.abs(old - batch.sampled_logprobs) * weights
        self.record("sampler_difference", kn.Mean(jnp.sum(difference), count))
        self.record("sampler_difference_most", kn.Max(jnp.max(difference)))


def by_rollout(
    logprobs: Float[Array, "B T"], batch: RolloutBatch, places: Int[Array, "R L"]
) -> tuple[Float[Array, "R L"], RolloutBatch]:
    """Returns log-probabilities and what was rated of packed rollouts with a row for each rollout; 0 after its end."""
    there = places >= 0

    def rows(x: jax.Array) -> jax.Array:
        return jnp.where(there, x.reshape(-1)[jnp.maximum(places, 0)], 0.0)

    names = ("loss_weights", "advantages", "sampled_logprobs", "old_logprobs", "reference_logprobs")
    rated = {name: rows(getattr(batch, name)) for name in names if getattr(batch, name) is not None}
    return rows(logprobs), batch._replace(**rated, places=None)
