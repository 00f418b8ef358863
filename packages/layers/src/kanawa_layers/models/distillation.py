"""Distillation: a model learns a frozen teacher's distributions over the tokens of data, or of what it wrote itself."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Batch, RolloutBatch
from kanawa.errors import ModuleError
from kanawa.module import Outputs

from kanawa_layers.losses.distillation import divergence
from kanawa_layers.models.head import Head
from kanawa_layers.models.reference import FrozenModel, target_logprobs
from kanawa_layers.models.token_loss import TokenLoss


class HiddenStates(TokenLoss):
    """No loss: emits what logits are made of, the `hidden` states [batch, length, embed] and the head's `weight`."""

    class Config(TokenLoss.Config):
        pass

    def forward(self, x: Float[Array, "B T E"], head: Head, batch: Batch) -> None:
        """Emits both."""
        del batch
        self.emit("hidden", head.scaled(x))
        self.emit("weight", head.weight())


class Distillation(TokenLoss):
    """Divergence from a frozen teacher over weighted tokens, and `data_weight` times their cross entropy.

    `mix` 0 is KL(teacher || student) (Hinton et al. 2015, arXiv:1503.02531), 1 is KL(student || teacher) (MiniLLM,
    arXiv:2306.08543), between them the generalised Jensen-Shannon divergence (GKD, arXiv:2306.13649, equation 1).
    Rollouts, which the model wrote itself, have no cross entropy: that is on-policy distillation. Logits exist for
    `chunk` positions at a time, forward and backward. Outside of training it is the student's cross entropy. It emits
    `logprobs` of the targets, fp32 [batch, length].
    """

    teacher: FrozenModel | None

    class Config(TokenLoss.Config):
        teacher: FrozenModel.Config | None = None
        mix: kn.Fraction = 0.0
        temperature: kn.Positive = 1.0
        data_weight: kn.NonNegative = 1.0
        chunk: kn.Size = 128

    def setup(self) -> None:
        """Declares the teacher."""
        self.add_child("teacher", self.config.teacher)

    def forward(self, x: Float[Array, "B T E"], head: Head, batch: Any) -> None:
        """Adds both terms; raises ModuleError without a teacher to train by."""
        cfg, weights = self.config, batch.loss_weights
        logprobs = self.emit("logprobs", target_logprobs(x, head, batch))
        nll, count = -jnp.sum(jnp.where(weights > 0, logprobs * weights, 0.0)), jnp.sum(weights)
        if not self.train:
            self.add_loss("cross_entropy", nll, count, primary=True)
            return
        if self.teacher is None:
            message = f"{self.path} has no teacher; name one with --modify distill:teacher=FOLDER"
            raise ModuleError(message)
        own = (head.scaled(x), head.weight(), head.tied, head.config.logit_cap)
        values = self._divergences(own, self._of_teacher(self.teacher, batch))
        total = jnp.sum(jnp.where(weights > 0, values * weights, 0.0))
        self.add_loss("distillation", total, count, cfg.coefficient, primary=True)
        if isinstance(batch, RolloutBatch) or not cfg.data_weight:
            self.record("nll", kn.Mean(nll, count))
        else:
            self.add_loss("cross_entropy", nll, count, cfg.data_weight)

    def _of_teacher(self, teacher: FrozenModel, batch: Any) -> tuple[Any, ...]:
        # The teacher's own loss emits them; a second module tree in one call needs a call of its own.
        context: Any = kn.current_context()
        model: Any = teacher.model
        params = jax.lax.stop_gradient(context.params["teacher"]["model"])
        state = context.state.get("teacher", {}).get("model", {})
        plain = Batch(batch.input_ids, batch.target_ids, batch.positions, batch.segment_ids, batch.loss_weights)
        _, outputs = kn.functional(model)(params, state, plain, emit=("loss.hidden", "loss.weight"))
        context.collector.absorb(Outputs(kernels=outputs.kernels))
        hidden, weight = (jax.lax.stop_gradient(outputs.emitted[f"loss.{name}"]) for name in ("hidden", "weight"))
        return hidden, weight, model.head.tied, model.head.config.logit_cap

    def _divergences(self, student: tuple[Any, ...], teacher: tuple[Any, ...]) -> Float[Array, "B T"]:
        """Returns one number a token, a chunk of positions after the other; each is computed anew for its gradient."""
        cfg = self.config
        rows, length = student[0].shape[:2]
        size = math.gcd(length, cfg.chunk)

        def chunked(hidden: jax.Array) -> jax.Array:
            return jnp.swapaxes(hidden.reshape(rows, length // size, size, hidden.shape[-1]), 0, 1)

        @jax.checkpoint
        def one(hidden: tuple[jax.Array, jax.Array], weights: tuple[jax.Array, jax.Array]) -> jax.Array:
            logits = [
                _logits(x, w, tied, cap)
                for x, w, (tied, cap) in zip(hidden, weights, (student[2:], teacher[2:]), strict=True)
            ]
            return divergence(*logits, mix=cfg.mix, temperature=cfg.temperature)

        weights = student[1], teacher[1]
        each = jax.lax.map(lambda hidden: one(hidden, weights), (chunked(student[0]), chunked(teacher[0])))
        joined: jax.Array = jnp.swapaxes(each, 0, 1).reshape(rows, length)
        return joined


def _logits(x: jax.Array, weight: jax.Array, tied: bool, cap: float | None) -> jax.Array:
    dims = (((2,), (1 if tied else 0,)), ((), ()))
    logits = jax.lax.dot_general(x, weight, dims, preferred_element_type=jnp.float32)
    return logits if cap is None else cap * jnp.tanh(logits / cap)
