"""Mixture of experts in place of a feed-forward: route, dispatch, grouped matmuls, combine."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import sashimono as sm
from jaxtyping import Array, Float, Int
from sashimono.contracts import FeedForward, Sequences, TokenDispatcher
from sashimono.kernels import grouped_matmul

from sashimono_layers.moe.local_dispatcher import LocalDispatcher
from sashimono_layers.moe.router import TopKRouter


class GatedExperts(sm.Module):
    """`num_experts` gated feed-forwards in one set of arrays [experts, in, out], applied to rows sorted by expert."""

    class Config(sm.Module.Config):
        input_dim: int = sm.FROM_PARENT
        hidden_dim: int = sm.FROM_PARENT
        num_experts: int = sm.FROM_PARENT
        activation: Callable = jax.nn.silu
        foreign: sm.Foreign = sm.Foreign(
            tensors={
                "gate": sm.Tensor(name="{}.gate_proj.weight", form=sm.Matrix.Config()),
                "up": sm.Tensor(name="{}.up_proj.weight", form=sm.Matrix.Config()),
                "down": sm.Tensor(name="{}.down_proj.weight", form=sm.Matrix.Config()),
            }
        )

    def setup(self) -> None:
        """Declares gate, up and down weights of all experts."""
        cfg = self.config
        for name in ("gate", "up"):
            self.add_param(
                name,
                (cfg.num_experts, cfg.input_dim, cfg.hidden_dim),
                axes=("experts", "embed", "mlp"),
                fan_in_axes=(1,),
            )
        self.add_param(
            "down",
            (cfg.num_experts, cfg.hidden_dim, cfg.input_dim),
            axes=("experts", "mlp", "embed"),
            fan_in_axes=(1,),
        )

    def forward(self, rows: Float[Array, "R E"], group_sizes: Int[Array, " X"]) -> Float[Array, "R E"]:
        """Returns each row through its expert."""
        gate = self.tag("feed_forward_gate", grouped_matmul(rows, self.param("gate"), group_sizes))
        up = self.tag("feed_forward_up", grouped_matmul(rows, self.param("up"), group_sizes))
        return grouped_matmul(self.config.activation(gate) * up, self.param("down"), group_sizes)


class MixtureOfExperts(FeedForward):
    """Sparse feed-forward: each token runs through `router.top_k` of `num_experts` experts; nothing is dropped."""

    class Config(FeedForward.Config):
        num_experts: int = sm.REQUIRED
        router: TopKRouter.Config = TopKRouter.Config()
        dispatcher: TokenDispatcher.Config = LocalDispatcher.Config()
        experts: GatedExperts.Config = GatedExperts.Config()
        foreign: sm.Foreign = sm.Foreign(children={"router": "gate", "experts": "experts"})

        def check(self) -> list[str]:
            """Returns what is wrong with the number of experts."""
            if self.num_experts >= self.router.top_k:
                return []
            return [f"num_experts ({self.num_experts}) is less than router.top_k ({self.router.top_k})"]

    def setup(self) -> None:
        """Declares router, dispatcher and experts."""
        cfg = self.config
        self.add_child("router", cfg.router, input_dim=cfg.input_dim, num_experts=cfg.num_experts)
        self.add_child("dispatcher", cfg.dispatcher, num_experts=cfg.num_experts)
        self.add_child(
            "experts",
            cfg.experts,
            input_dim=cfg.input_dim,
            hidden_dim=cfg.hidden_dim,
            num_experts=cfg.num_experts,
        )

    def forward(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the mixed expert outputs; padding takes part in the matmuls but not in losses or metrics."""
        tokens = x.reshape(-1, x.shape[-1])
        valid = jnp.ones(tokens.shape[0], jnp.float32)
        if sequences.segment_ids is not None:
            valid = (sequences.segment_ids.reshape(-1) > 0).astype(jnp.float32)
        routing = self.router(tokens, valid)
        rows, sizes, plan = self.dispatcher.dispatch(tokens, routing.expert_ids)
        mixed = self.dispatcher.combine(self.experts(rows, sizes), routing.weights, plan)
        return sm.constrain(mixed.reshape(x.shape), ("batch", "length", "embed"))

    @sm.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns the router's FLOPs and those of the experts a token visits."""
        del context_length
        cfg = self.config
        expert = 6.0 * cfg.input_dim * cfg.hidden_dim
        return 2.0 * cfg.input_dim * cfg.num_experts + cfg.router.top_k * expert
