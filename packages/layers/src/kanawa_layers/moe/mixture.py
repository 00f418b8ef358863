"""Mixture of experts in place of a feed-forward: route, dispatch, grouped matmuls, combine."""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import FeedForward, Sequences, TokenDispatcher

from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.moe.dispatchers import LocalDispatcher
from kanawa_layers.moe.experts import Experts, GatedExperts
from kanawa_layers.moe.router import Routing, TopKRouter


class MixtureOfExperts(FeedForward):
    """Sparse feed-forward: each token runs through `router.top_k` of `num_experts` experts of width `hidden_dim`.

    `shared` is a feed-forward that every token runs through in addition (DeepSeekMoE, arXiv:2401.06066), weighed by the
    sigmoid of `shared_gate` where there is one (Qwen2-MoE). `weigh_inputs` multiplies a token by its weight before the
    expert instead of after it (Llama 4). The dispatcher decides whether tokens may be dropped.
    """

    router: TopKRouter
    dispatcher: TokenDispatcher
    experts: Experts
    shared: FeedForward | None
    shared_gate: Linear | None

    class Config(FeedForward.Config):
        num_experts: kn.Size = kn.REQUIRED
        router: TopKRouter.Config = TopKRouter.Config()
        dispatcher: TokenDispatcher.Config = LocalDispatcher.Config()
        experts: Experts.Config = GatedExperts.Config()
        shared: FeedForward.Config | None = None
        shared_gate: Linear.Config | None = None
        weigh_inputs: bool = False
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "router": "gate",
                "experts": "experts",
                "shared": "shared_experts",
                "shared_gate": "shared_expert_gate",
            }
        )

        def check(self) -> list[str]:
            """Returns what is wrong with the number of experts and the options."""
            problems = []
            if self.num_experts < self.router.top_k:
                problems.append(f"num_experts ({self.num_experts}) is less than router.top_k ({self.router.top_k})")
            if self.weigh_inputs and self.router.top_k != 1:
                problems.append(f"weigh_inputs needs router.top_k 1, found {self.router.top_k}")
            if self.shared_gate is not None and self.shared is None:
                problems.append("shared_gate is set, but there is no shared feed-forward to weigh; set shared too")
            return problems

    def setup(self) -> None:
        """Declares router, dispatcher, experts and shared parts."""
        cfg = self.config
        self.add_child("router", cfg.router, input_dim=cfg.input_dim, num_experts=cfg.num_experts)
        self.add_child("dispatcher", cfg.dispatcher, num_experts=cfg.num_experts)
        sizes = {"input_dim": cfg.input_dim, "hidden_dim": cfg.hidden_dim, "num_experts": cfg.num_experts}
        self.add_child("experts", cfg.experts, **sizes)
        self.add_child("shared", cfg.shared, input_dim=cfg.input_dim)
        add_linear(self, "shared_gate", cfg.input_dim, 1, ("embed", None))

    def forward(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the mixed expert outputs; padding has weight 0 and doesn't count in losses or metrics."""
        tokens = x.reshape(-1, x.shape[-1])
        valid = jnp.ones(tokens.shape[0], jnp.float32)
        if sequences.segment_ids is not None:
            valid = (sequences.segment_ids.reshape(-1) > 0).astype(jnp.float32)
        mixed = self._routed(x, self.router(tokens, valid, rows=x.shape[0]), valid)
        mixed = kn.constrain(mixed, ("batch", "length", "embed"))
        if self.shared is None:
            return mixed
        common = self.shared(x, sequences)
        if self.shared_gate is not None:
            common = common * jax.nn.sigmoid(self.shared_gate(x))
        return mixed + common

    def _routed(self, x: Float[Array, "B T E"], routing: Routing, valid: Float[Array, " N"]) -> Float[Array, "B T E"]:
        expert_ids, weights = routing.expert_ids, routing.weights * valid[:, None]
        # With a weight of 0 alone, padding would still take rows of an expert, and capacity from real tokens.
        if self.dispatcher.skips_padding:
            expert_ids = jnp.where(valid[:, None] > 0.0, expert_ids, self.config.num_experts)
        expert_ids, weights = (each.reshape(*x.shape[:-1], -1) for each in (expert_ids, weights))
        if self.config.weigh_inputs:
            # Not the same as weighing outputs: the weight passes through the expert's activation.
            x, weights = x * weights.astype(x.dtype), jnp.ones_like(weights)
        # `through`, not dispatch and combine: a plan may shard experts and tokens.
        return self.dispatcher.through(self.experts, x, expert_ids, weights)

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns the FLOPs of the router, of the experts a token visits, and of shared parts."""
        cfg = self.config
        shared = sum(p.flops_per_token(context_length) for p in (self.shared, self.shared_gate) if p is not None)
        routed = cfg.router.top_k * self.experts.flops_per_row()
        return float(2.0 * cfg.input_dim * cfg.num_experts + routed + shared)

    @kn.nowrap
    def idle_parameters(self) -> int:
        """Returns the parameters of the experts that a token isn't sent to: all but `router.top_k` of them."""
        held = sum(spec.size for spec in flatten_paths(kn.param_specs(self.experts)).values())
        count = self.config.num_experts
        return int(super().idle_parameters() + held // count * (count - self.config.router.top_k))
