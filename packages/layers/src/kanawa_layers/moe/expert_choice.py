"""Expert choice (Zhou et al. 2022, arXiv:2202.09368): experts pick tokens, so every expert has the same load."""

import math

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import FeedForward, Sequences
from kanawa.kernels.matmul import matmul

from kanawa_layers.moe.experts import Experts, GatedExperts


class ExpertChoiceRouter(kn.Module):
    """Lets each expert choose `factor * tokens / num_experts` tokens by its share of their softmax, in fp32."""

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        num_experts: kn.Size = kn.FROM_PARENT
        factor: kn.Positive = 2.0
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Matrix.Config())}
        )

    def setup(self) -> None:
        """Declares the router's weight; it never decays and stays fp32."""
        cfg = self.config
        self.add_param("weight", (cfg.input_dim, cfg.num_experts), axes=("embed", "experts"), weight_decay=0.0)

    def forward(
        self, x: Float[Array, "N E"], valid: Float[Array, " N"]
    ) -> tuple[Int[Array, "X C"], Float[Array, "X C"]]:
        """Returns the tokens each expert chose, and their weights (0 for padding)."""
        num_tokens, cfg = x.shape[0], self.config
        capacity = min(num_tokens, math.ceil(cfg.factor * num_tokens / cfg.num_experts))
        weight = self.param("weight", jnp.float32)
        logits = matmul(x.astype(jnp.float32), weight, precision="highest")
        # The softmax is each token's over experts, the top-k each expert's over tokens: some tokens may not be chosen.
        scores = jax.nn.softmax(logits, axis=-1) * valid[:, None]
        weights, tokens = jax.lax.top_k(scores.T, capacity)
        # Experts fill up with weight-0 tokens where too few are real; those don't count as visits.
        visits = jnp.zeros(num_tokens).at[tokens.reshape(-1)].add((weights > 0.0).reshape(-1).astype(jnp.float32))
        self.record("unrouted", kn.Mean(jnp.sum(jnp.where(visits == 0.0, valid, 0.0)), jnp.sum(valid)))
        return tokens, weights


class ExpertChoiceMixture(FeedForward):
    """A mixture whose experts choose their tokens from the whole batch; a token may get any number of experts.

    The choice looks at later tokens, so a causal model that is trained with it can't be decoded token by token: it
    suits encoders. The share of tokens without any expert is recorded as `unrouted`.
    """

    depends_on_batch = True

    router: ExpertChoiceRouter
    experts: Experts

    class Config(FeedForward.Config):
        num_experts: kn.Size = kn.REQUIRED
        router: ExpertChoiceRouter.Config = ExpertChoiceRouter.Config()
        experts: Experts.Config = GatedExperts.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(children={"router": "gate", "experts": "experts"})

    def setup(self) -> None:
        """Declares router and experts."""
        cfg = self.config
        self.add_child("router", cfg.router, input_dim=cfg.input_dim, num_experts=cfg.num_experts)
        sizes = {"input_dim": cfg.input_dim, "hidden_dim": cfg.hidden_dim, "num_experts": cfg.num_experts}
        self.add_child("experts", cfg.experts, **sizes)

    def forward(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns each token's weighted sum over the experts that chose it, summed in fp32."""
        tokens = x.reshape(-1, x.shape[-1])
        valid = jnp.ones(tokens.shape[0], jnp.float32)
        if sequences.segment_ids is not None:
            valid = (sequences.segment_ids.reshape(-1) > 0).astype(jnp.float32)
        chosen, weights = self.router(tokens, valid)
        flat, sizes = chosen.reshape(-1), jnp.full(chosen.shape[0], chosen.shape[1], jnp.int32)
        rows = self.experts(jnp.take(tokens, flat, axis=0), sizes)
        weighted = rows.astype(jnp.float32) * weights.reshape(-1, 1)
        mixed = jnp.zeros(tokens.shape, jnp.float32).at[flat].add(weighted).astype(x.dtype)
        return kn.constrain(mixed.reshape(x.shape), ("batch", "length", "embed"))

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns the FLOPs of the router and of the `factor` experts that a token gets on average."""
        del context_length
        cfg = self.config
        return float(2.0 * cfg.input_dim * cfg.num_experts + cfg.router.factor * self.experts.flops_per_row())

    @kn.nowrap
    def idle_parameters(self) -> int:
        """Returns the experts' parameters that a token doesn't use on average: it is chosen `router.factor` times."""
        cfg = self.config
        held = sum(spec.size for spec in flatten_paths(kn.param_specs(self.experts)).values())
        chosen = min(cfg.router.factor, cfg.num_experts)
        return int(super().idle_parameters() + round(held * (1.0 - chosen / cfg.num_experts)))
