"""Top-k routers, softmax or sigmoid, in fp32 (Shazeer et al. 2017, arXiv:1701.06538)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.kernels.matmul import matmul

from kanawa_layers.moe.balancing import BiasBalancing
from kanawa_layers.moe.scoring import Scoring, Softmax
from kanawa_layers.moe.selection import Best, Selection


class Routing(NamedTuple):
    """For each of N tokens: the chosen experts [N, top_k] and their weights [N, top_k], fp32."""

    expert_ids: Int[Array, "N k"]
    weights: Float[Array, "N k"]


class TopKRouter(kn.Module):
    """Chooses `top_k` experts for each token by fp32 scores, which also weigh them.

    Slots: how logits become scores, how scores select, and a balancing bias that only selection sees. Weights are
    renormalised over the chosen experts where `normalise_weights`, then multiplied by `weight_scale` (DeepSeek-V3's
    routed scaling factor). `jitter` multiplies the inputs by uniform noise in training (Switch, arXiv:2101.03961).
    Records the largest expert's load; adds the load-balance loss (Switch, equation 4) and the router z-loss (ST-MoE,
    arXiv:2202.08906) where their coefficients are not 0.
    """

    balancing: BiasBalancing | None

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        num_experts: kn.Size = kn.FROM_PARENT
        top_k: kn.Size = 2
        bias: bool = False
        scoring: Scoring.Config = Softmax.Config()
        selection: Selection.Config = Best.Config()
        balancing: BiasBalancing.Config | None = None
        normalise_weights: bool = True
        weight_scale: kn.Finite = 1.0
        jitter: kn.NonNegative = 0.0
        balance_loss: kn.NonNegative = 0.01
        z_loss: kn.NonNegative = 0.001
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Matrix.Config()), "bias": "bias"},
            children={"balancing": ""},
        )

        def check(self) -> list[str]:
            """Returns what is wrong with the selection, once the number of experts is known."""
            selection: Selection = self.selection.build()
            return selection.problems(self.num_experts, self.top_k) if isinstance(self.num_experts, int) else []

    def setup(self) -> None:
        """Declares the router's weight; it never decays and stays fp32."""
        cfg = self.config
        self.add_param("weight", (cfg.input_dim, cfg.num_experts), axes=("embed", "experts"), weight_decay=0.0)
        if cfg.bias:
            self.add_param("bias", (cfg.num_experts,), axes=("experts",), init=kn.zeros, weight_decay=0.0)
        self.add_child("balancing", cfg.balancing, num_experts=cfg.num_experts)
        self._scoring, self._selection = cfg.scoring.build(), cfg.selection.build()

    def forward(self, x: Float[Array, "N E"], valid: Float[Array, " N"]) -> Routing:
        """Returns the routing of each token; tokens whose `valid` is 0 don't count in losses, metrics or state."""
        cfg = self.config
        logits = self._logits(x)
        scores = self._scoring.scores(logits)
        preference = jax.lax.stop_gradient(scores)
        if self.balancing is not None:
            # The bias affects selection only: weights below come from the scores, so no gradient reaches it.
            preference = preference + self.balancing.bias()[None]
        # Integers: gradients reach the router through the weights of the chosen experts alone.
        expert_ids = self._selection.choose(preference, cfg.top_k)
        weights = jnp.take_along_axis(scores, expert_ids, axis=-1)
        if cfg.normalise_weights:
            # Sigmoid scores may all underflow; DeepSeek's own code guards with the same number.
            weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + 1e-20)
        self._account(logits, scores, expert_ids, valid)
        return Routing(expert_ids, weights * cfg.weight_scale)

    def _logits(self, x: Float[Array, "N E"]) -> Float[Array, "N X"]:
        jitter, x32 = self.config.jitter, x.astype(jnp.float32)
        if jitter and self.train:
            x32 = x32 * jax.random.uniform(self.next_key(), x.shape, minval=1.0 - jitter, maxval=1.0 + jitter)
        # By default, accelerators round the inputs of an fp32 matmul to fewer bits.
        logits = matmul(x32, self.param("weight", jnp.float32), precision="highest")
        return logits + self.param("bias", jnp.float32)[None] if self.config.bias else logits

    def _account(
        self,
        logits: Float[Array, "N X"],
        scores: Float[Array, "N X"],
        expert_ids: Int[Array, "N k"],
        valid: Float[Array, " N"],
    ) -> None:
        cfg, count = self.config, jnp.sum(valid)
        # Counted over all k choices at once: top-k ids of a token differ, so entries are 0 or 1.
        chosen = jax.nn.one_hot(expert_ids, cfg.num_experts, dtype=jnp.float32).sum(1)
        # A microbatch of nothing but padding would divide by 0, and its zero weight would not remove a NaN.
        safe = jnp.maximum(count, 1.0)
        load = jnp.sum(chosen * valid[:, None], 0) / (safe * cfg.top_k)
        self.record("max_load", kn.Max(jnp.max(load)))
        if self.balancing is not None:
            self.balancing.observe(load)
        if cfg.balance_loss:
            shares = scores / (jnp.sum(scores, axis=-1, keepdims=True) + 1e-20)
            importance = jnp.sum(shares * valid[:, None], 0) / safe
            # 1 when balanced; weighted by tokens so that microbatches and layers average.
            balance = cfg.num_experts * jnp.sum(load * importance)
            self.add_loss("balance_loss", balance * count, count, cfg.balance_loss)
        if cfg.z_loss:
            z = jnp.square(jax.nn.logsumexp(logits, axis=-1)) * valid
            self.add_loss("z_loss", jnp.sum(z), count, cfg.z_loss)
