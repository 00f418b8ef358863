"""QK-clip: queries and keys are scaled down after an update whose scores were too large (Kimi K2, arXiv:2507.20534)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import AdjustsParameters, Sequences
from kanawa.errors import ConfigError

from kanawa_layers.attention.grouped_query import GroupedQueryAttention

#: Queries whose scores exist at one time while their largest is looked for.
_TOGETHER = 256


class ClippedAttention(GroupedQueryAttention, AdjustsParameters):
    """Grouped-query attention that records each head's largest score, and keeps it under `max_score` (section 2.1).

    A head whose scores reached S > max_score has its queries multiplied by max_score / S after the update; with as many
    key heads as query heads, queries and keys by the square root each. It costs one more matmul of queries and keys in
    training, whatever kernel attends. The state is `max_scores` [heads] of the last batch (of the last microbatch).
    """

    class Config(GroupedQueryAttention.Config, AdjustsParameters.Config):
        max_score: kn.Positive = 100.0

        def check(self) -> list[str]:
            """Returns what is wrong: where queries are normalised, their weights don't set the size of scores."""
            problems = super().check()
            if self.query_norm is not None or self.key_norm is not None:
                problems.append("QK-clip scales weights, which query_norm and key_norm undo; it isn't needed with them")
            if self.sharing is not None:
                problems.append("QK-clip doesn't support keys shared between layers")
            return problems

    def setup(self) -> None:
        """Declares the attention, and the record."""
        super().setup()
        self.add_state("max_scores", (self.config.num_heads,), axes=("heads",))

    def _queries_keys_values(
        self, x: Float[Array, "B T E"], sequences: Sequences, positions: Int[Array, "B T"]
    ) -> tuple[Any, Any, Any]:
        q, k, v = super()._queries_keys_values(x, sequences, positions)
        if self.train:
            scores = largest_scores(q, k, sequences.segment_ids, causal=self.mask.causal)
            self.update("max_scores", scores * abs(self.dot_product.config.scale))
        return q, k, v

    @kn.nowrap
    def adjusted(self, params: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the parameters with the projections of heads scaled whose scores were too large."""
        most, seen = self.config.max_score, state["max_scores"]
        factor = jnp.where(seen > most, most / jnp.maximum(seen, most), 1.0)
        if "qkv" in params:
            return {**params, "qkv": self._scaled_fused(params["qkv"], factor)}
        both = self.heads.kv_heads == self.heads.heads
        factor = jnp.sqrt(factor) if both else factor
        names = ("query", "key") if both else ("query",)
        return {**params, **{name: _scaled(params[name], factor) for name in names}}

    def _scaled_fused(self, params: Mapping[str, Any], factor: jax.Array) -> dict[str, Any]:
        """Returns the fused projection with its queries scaled: [.., kv_heads, heads / kv_heads + 2, head_dim]."""
        group = self.heads.heads // self.heads.kv_heads
        factor = factor.reshape(*factor.shape[:-1], self.heads.kv_heads, group)
        factor = jnp.concatenate([factor, jnp.ones((*factor.shape[:-1], 2), factor.dtype)], -1)
        return {
            name: leaf * _aligned(factor, leaf, heads_at=3 if name == "bias" else 4) if name in _ARRAYS else leaf
            for name, leaf in params.items()
        }


_ARRAYS = ("weight", "bias")


def _scaled(params: Mapping[str, Any], factor: jax.Array) -> dict[str, Any]:
    """Returns a projection with its heads scaled: weight [.., embed, heads, head_dim], bias [.., heads, head_dim]."""
    return {
        name: leaf * _aligned(factor, leaf, heads_at=2 if name == "bias" else 3) if name in _ARRAYS else leaf
        for name, leaf in params.items()
    }


def _aligned(factor: jax.Array, leaf: jax.Array, heads_at: int) -> jax.Array:
    """Returns the factor [layers.., heads..] with axes of size one, for an array of `heads_at` axes beside layers."""
    layers = leaf.ndim - heads_at
    heads = factor.ndim - layers
    before = heads_at - heads - 1
    shape = (*factor.shape[:layers], *(1,) * before, *factor.shape[layers:], 1)
    return factor.reshape(shape).astype(leaf.dtype)


def largest_scores(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], segments: Int[Array, "B T"] | None, *, causal: bool
) -> Float[Array, " H"]:
    """Returns each query head's largest q·k, fp32, over pairs that causality and segments leave; a part of T at a time.

    Windows and other masks aren't looked at: it is then an upper bound.
    """
    q, k = jax.lax.stop_gradient(q), jax.lax.stop_gradient(k)
    rows, length, heads, _ = q.shape
    k = jnp.repeat(k, heads // k.shape[2], axis=2)
    keys = jnp.arange(k.shape[1])
    part = _TOGETHER if length % _TOGETHER == 0 else length
    most = jnp.full((heads,), -jnp.inf, jnp.float32)
    for start in range(0, length, part):
        queries = jnp.arange(start, start + part)
        scores = jnp.einsum("bthd,bshd->bhts", q[:, start : start + part], k, preferred_element_type=jnp.float32)
        seen = jnp.broadcast_to(
            queries[:, None] >= keys[None] if causal else jnp.ones((part, len(keys)), bool), (rows, part, len(keys))
        )
        if segments is not None:
            own = segments[:, start : start + part, None]
            seen = seen & (own == segments[:, None]) & (own > 0)
        most = jnp.maximum(most, jnp.max(jnp.where(seen[:, None], scores, -jnp.inf), (0, 2, 3)))
    return jnp.maximum(most, 0.0)


class QKClip(kn.Modifier):
    """`qk-clip`: keeps scores of attention under `max_score` (Kimi K2, arXiv:2507.20534; with Muon: MuonClip)."""

    class Config(kn.Modifier.Config):
        max_score: kn.Positive = 100.0
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every plain grouped-query attention under `where` clipped."""

        others = {
            type(node).__qualname__
            for _, node in cfg.walk()
            if isinstance(node, GroupedQueryAttention.Config) and type(node) is not GroupedQueryAttention.Config
        }
        if others:
            message = (
                f"qk-clip is for plain grouped-query attention, and {', '.join(sorted(others))} computes otherwise"
            )
            raise ConfigError(message)
        new = ClippedAttention.Config(max_score=self.config.max_score)
        kn.replace(cfg, target=GroupedQueryAttention, new=new, where=self.config.where)
        return cfg
