"""Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245); its head counts make it multi-head or -query."""

import math
from collections.abc import Mapping
from typing import Any

import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import Cache, CacheState, CacheView, Fusable, Norm, Positions, SequenceMixer, Sequences

from kanawa_layers.attention.dense_cache import DenseCache
from kanawa_layers.attention.dot_product import DotProduct, SoftmaxDotProduct, key_positions, score_offsets
from kanawa_layers.attention.key_sharing import KeySharing, offer_keys, taken_keys, takes_keys
from kanawa_layers.attention.masks import Causal, Mask, narrowed, reach, window_problems
from kanawa_layers.attention.projections import (
    NAMES,
    Heads,
    add_fused_projections,
    add_projections,
    fuse_projections,
    head_dim_of,
    normed,
    project,
)
from kanawa_layers.attention.slots import OutputGate, QueryScale, Sinks
from kanawa_layers.basic.linear import Linear, are_alike
from kanawa_layers.positions.rotary import Rotary


class GroupedQueryAttention(SequenceMixer, Fusable):
    """Attention of `num_heads` query heads over `num_kv_heads` key and value heads.

    Slots: projections (`qkv` set: one fused weight in place of three), mask, positions, query and key norms (over one
    head, or over all at once), scale of queries, sinks, gate, dot product, and cache. `window` narrows a causal mask to
    that many keys, the query's own included. `scale` multiplies scores; None: head_dim ** -0.5. `sharing` offers keys
    and values to later layers, or takes those of an earlier one: `key`, `value` and `cache` are then unused. Tags for
    remat: query, key, value, attention_output, attention_projection.
    """

    query: Linear | None
    key: Linear | None
    value: Linear | None
    qkv: Linear | None
    output: Linear
    positions: Positions
    query_norm: Norm | None
    key_norm: Norm | None
    query_scale: QueryScale | None
    sinks: Sinks | None
    gate: OutputGate | None
    dot_product: DotProduct
    cache: Cache | None

    class Config(SequenceMixer.Config, Fusable.Config):
        num_heads: kn.Size = kn.REQUIRED
        num_kv_heads: kn.Size | None = None
        head_dim: kn.Size | None = None
        mask: Mask.Config = Causal.Config()
        window: kn.Size | None = None
        scale: kn.Finite | None = None
        logit_cap: kn.Positive | None = None
        query: Linear.Config = Linear.Config()
        key: Linear.Config = Linear.Config()
        value: Linear.Config = Linear.Config()
        qkv: Linear.Config | None = None
        output: Linear.Config = Linear.Config()
        positions: Positions.Config = Rotary.Config()
        query_norm: Norm.Config | None = None
        key_norm: Norm.Config | None = None
        norm_all_heads: bool = False
        query_scale: QueryScale.Config | None = None
        sinks: Sinks.Config | None = None
        gate: OutputGate.Config | None = None
        dot_product: DotProduct.Config = SoftmaxDotProduct.Config()
        cache: Cache.Config = DenseCache.Config()
        sharing: KeySharing.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={**NAMES, "positions": "", "query_scale": "query_scale"},
            apart={
                # Each key head has its queries, then its key and its value.
                "qkv": (
                    kn.foreign.Sliced(name="q_proj", axis=-2, stop=-2),
                    kn.foreign.Sliced(name="k_proj", axis=-2, start=-2, stop=-1),
                    kn.foreign.Sliced(name="v_proj", axis=-2, start=-1),
                )
            },
        )

        def check(self) -> list[str]:
            """Returns what is wrong with the head counts and the window."""
            kv_heads, problems = self.num_kv_heads or self.num_heads, window_problems(self.mask, self.window)
            if self.num_heads % kv_heads != 0:
                problems.append(f"num_heads ({self.num_heads}) is not a multiple of num_kv_heads ({kv_heads})")
            if self.qkv is not None and takes_keys(self.sharing):
                problems.append("qkv makes keys and values, but sharing takes those of another layer; leave qkv unset")
            return problems

    def setup(self) -> None:
        """Declares the projections [embed, heads, head_dim] and back, and what is in the slots."""
        cfg = self.config
        heads = Heads(cfg.input_dim, cfg.num_heads, cfg.num_kv_heads or cfg.num_heads, head_dim_of(self))
        self.heads, self.head_dim = heads, heads.head_dim
        self.mask = narrowed(cfg.mask, cfg.window)
        self.takes_keys = takes_keys(cfg.sharing)
        if cfg.qkv is None:
            self.add_child("qkv", None)
            add_projections(self, cfg, heads, own_keys=not self.takes_keys)
        else:
            add_fused_projections(self, cfg, heads)
        self.add_child("positions", cfg.positions, head_dim=self.head_dim, num_heads=cfg.num_heads)
        widths = heads.norm_widths(cfg.norm_all_heads)
        self.add_child("query_norm", cfg.query_norm, input_dim=widths[0])
        self.add_child("key_norm", None if self.takes_keys else cfg.key_norm, input_dim=widths[1])
        self.add_child("query_scale", cfg.query_scale, head_dim=self.head_dim)
        self.add_child("sinks", cfg.sinks, num_heads=cfg.num_heads)
        self.add_child("gate", cfg.gate, input_dim=cfg.input_dim, num_heads=cfg.num_heads, head_dim=self.head_dim)
        scale = 1.0 / math.sqrt(self.head_dim) if cfg.scale is None else cfg.scale
        self.add_child("dot_product", cfg.dot_product, scale=scale, logit_cap=cfg.logit_cap)
        shape: dict[str, Any] = {"num_kv_heads": heads.kv_heads, "key_dim": self.head_dim, "value_dim": self.head_dim}
        self.add_child("cache", None if self.takes_keys else cfg.cache, reach=reach(self.mask), **shape)

    @kn.nowrap
    def trained_length(self) -> int | None:
        """Returns that of the positions; None for a window that never sees two tokens so far apart."""
        length, span = super().trained_length(), reach(self.mask)
        return None if length is not None and span is not None and span <= length else length

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the attended activations and the extended cache."""
        positions = sequences.token_positions(x.shape[1])
        if self.cache is None:
            q = self._queries(x, sequences, positions)
            keys = taken_keys(self, self.config.sharing, self.mask, self.head_dim, self.config.num_heads)
        else:
            q, k, v = self._queries_keys_values(x, sequences, positions)
            keys = CacheView(None, k, v) if cache is None else self.cache.extend(cache, k, v, sequences)
            # After the cache was extended, so that layers which take keys see those of earlier calls too.
            offer_keys(self, self.config.sharing, keys, self.mask)
        # Depends on the keys, not on `cache`: a layer that takes keys has an empty cache in either case.
        kv_positions = positions if keys.state is None else key_positions(keys)
        out = self.dot_product(
            q,
            keys,
            self.mask,
            sequences,
            positions,
            sinks=None if self.sinks is None else self.sinks(),
            **score_offsets(self.dot_product, self.positions, positions, kv_positions, self.config.num_heads),
        )
        out = self.tag("attention_output", out)
        out = out if self.gate is None else self.gate(out, x)
        y = self.tag("attention_projection", self.output(out))
        return kn.constrain(y, ("batch", "length", "embed")), cache if self.takes_keys else keys.state

    def _queries(
        self, x: Float[Array, "B T E"], sequences: Sequences, positions: Int[Array, "B T"]
    ) -> Float[Array, "B T H D"]:
        """Returns queries alone, for keys that are already rotated."""
        assert self.query is not None  # `check` refuses `qkv` where keys are taken
        q = self.query(x)
        q = q if self.query_norm is None else normed(self.query_norm, q, self.config.norm_all_heads)
        coordinates = positions if sequences.coordinates is None else sequences.coordinates
        # There are no keys to rotate: an array without heads costs nothing.
        q, _ = self.positions.rotate(q, q[:, :, :0], coordinates)
        q = self.tag("query", q if self.query_scale is None else self.query_scale(q, positions))
        return kn.constrain(q, ("batch", "length", "heads", "head_dim"))

    def _queries_keys_values(
        self, x: Float[Array, "B T E"], sequences: Sequences, positions: Int[Array, "B T"]
    ) -> tuple[Any, Any, Any]:
        """Returns the inputs of the dot product: projected, normalised, rotated and scaled."""
        q, k, v = project(self, x)
        everything = self.config.norm_all_heads
        # Norms come before the rotation, which preserves lengths but doesn't commute with a learned scale per
        # dimension.
        q = q if self.query_norm is None else normed(self.query_norm, q, everything)
        k = k if self.key_norm is None else normed(self.key_norm, k, everything)
        # M-RoPE's coordinates rotate queries and keys only; masks and caches use the order of tokens.
        coordinates = positions if sequences.coordinates is None else sequences.coordinates
        q, k = self.positions.rotate(q, k, coordinates)
        q = q if self.query_scale is None else self.query_scale(q, positions)
        q, k, v = self.tag("query", q), self.tag("key", k), self.tag("value", v)
        return kn.constrain(q, ("batch", "length", "heads", "head_dim")), k, v

    @classmethod
    def fused_config(cls, cfg: Config) -> Config | None:
        """Returns the config with `qkv` in place of the three projections."""
        # A subclass may use its projections otherwise: it must override this to have them fused.
        separate = cls is GroupedQueryAttention and cfg.qkv is None and not takes_keys(cfg.sharing)
        return cfg.clone().set(qkv=cfg.query.clone()) if separate and are_alike(cfg.query, cfg.key, cfg.value) else None

    @kn.nowrap
    def fuse(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns `qkv` of the three projections' parameters, and the rest."""
        return fuse_projections(params, self.heads.kv_heads)

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of the cache slot; nothing for a layer that takes another's keys."""
        return {} if self.cache is None else self.cache.spec(rows, length, dtype)

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns projections plus scores and values: 4 * heads * head_dim FLOPs for each key seen."""
        seen = min(context_length, reach(self.mask) or context_length)
        scores = 4.0 * self.config.num_heads * self.head_dim * seen
        return float(super().flops_per_token(context_length) + scores)
