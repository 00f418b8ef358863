"""Top-k softmax router (Shazeer et al. 2017, arXiv:1701.06538; balance loss of Fedus et al. 2021, arXiv:2101.03961)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import sashimono as sm
from jaxtyping import Array, Float, Int


class Routing(NamedTuple):
    """For each of N tokens: the chosen experts [N, top_k] and their weights [N, top_k], fp32."""

    expert_ids: Int[Array, "N k"]
    weights: Float[Array, "N k"]


class TopKRouter(sm.Module):
    """Chooses `top_k` experts a token from fp32 logits; weights are renormalised over the chosen ones.

    Records the largest expert's load, and adds the load-balance loss and the router z-loss (Zoph et al. 2022).
    """

    class Config(sm.Module.Config):
        input_dim: int = sm.FROM_PARENT
        num_experts: int = sm.FROM_PARENT
        top_k: int = 2
        normalise_weights: bool = True
        balance_loss: float = 0.01
        z_loss: float = 0.001
        foreign: sm.Foreign = sm.Foreign(tensors={"weight": sm.Tensor(name="weight", form=sm.Matrix.Config())})

        def check(self) -> list[str]:
            """Returns what is wrong with top_k."""
            if isinstance(self.num_experts, int) and self.top_k > self.num_experts:
                return [f"top_k ({self.top_k}) is more than num_experts ({self.num_experts})"]
            return [] if self.top_k > 0 else [f"top_k is {self.top_k}, expected at least 1"]

    def setup(self) -> None:
        """Declares the router's weight; it never decays and stays fp32."""
        cfg = self.config
        self.add_param("weight", (cfg.input_dim, cfg.num_experts), axes=("embed", "experts"), weight_decay=0.0)

    def forward(self, x: Float[Array, "N E"], valid: Float[Array, " N"]) -> Routing:
        """Returns the routing of each token; tokens whose `valid` is 0 don't count in losses and metrics."""
        cfg = self.config
        logits = x.astype(jnp.float32) @ self.param("weight", jnp.float32)
        probabilities = jax.nn.softmax(logits, axis=-1)
        weights, expert_ids = jax.lax.top_k(probabilities, cfg.top_k)
        if cfg.normalise_weights:
            weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        self._balance(logits, probabilities, expert_ids, valid)
        return Routing(expert_ids, weights)

    def _balance(
        self,
        logits: Float[Array, "N X"],
        probabilities: Float[Array, "N X"],
        expert_ids: Int[Array, "N k"],
        valid: Float[Array, " N"],
    ) -> None:
        cfg, count = self.config, jnp.sum(valid)
        chosen = jax.nn.one_hot(expert_ids, cfg.num_experts, dtype=jnp.float32).sum(1)
        safe = jnp.maximum(count, 1.0)
        load = jnp.sum(chosen * valid[:, None], 0) / (safe * cfg.top_k)
        importance = jnp.sum(probabilities * valid[:, None], 0) / safe
        self.record("max_load", sm.Max(jnp.max(load)))
        if cfg.balance_loss:
            # 1 when balanced; weighted by tokens so that microbatches and layers average.
            balance = cfg.num_experts * jnp.sum(load * importance)
            self.add_loss("balance_loss", balance * count, count, cfg.balance_loss)
        if cfg.z_loss:
            z = jnp.square(jax.nn.logsumexp(logits, axis=-1)) * valid
            self.add_loss("z_loss", jnp.sum(z), count, cfg.z_loss)
