"""Cross attention (Vaswani et al. 2017): queries from the stream, keys and values from `Sequences.memory`."""

import math

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import CacheState, CacheView, Norm, SequenceMixer, Sequences
from kanawa.errors import ModuleError
from kanawa.kernels import MaskSpec

from kanawa_layers.attention.dot_product import DotProduct, SoftmaxDotProduct
from kanawa_layers.attention.projections import NAMES, Heads, add_projections, head_dim_of, normed
from kanawa_layers.attention.slots import OutputGate, Sinks
from kanawa_layers.basic.linear import Linear


class CrossAttention(SequenceMixer):
    """Every token sees the whole memory of its row, or of its segment where both sides have segment ids.

    The cache stores the projected memory, at most `memory_length` tokens (None: the cache's length). A call with
    `Sequences.memory` fills it; later calls without one read it. `memory_dim` None is the stream's width. Tags for
    remat: query, key, value, attention_output, attention_projection.
    """

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    sinks: Sinks | None
    gate: OutputGate | None
    dot_product: DotProduct

    class Config(SequenceMixer.Config):
        num_heads: kn.Size = kn.REQUIRED
        num_kv_heads: kn.Size | None = None
        head_dim: kn.Size | None = None
        memory_dim: kn.Size | None = None
        memory_length: kn.Size | None = None
        scale: kn.Finite | None = None
        logit_cap: kn.Positive | None = None
        query: Linear.Config = Linear.Config()
        key: Linear.Config = Linear.Config()
        value: Linear.Config = Linear.Config()
        output: Linear.Config = Linear.Config()
        query_norm: Norm.Config | None = None
        key_norm: Norm.Config | None = None
        #: Whether norms span all heads at once, as in Wan, instead of one.
        norm_all_heads: bool = False
        sinks: Sinks.Config | None = None
        gate: OutputGate.Config | None = None
        dot_product: DotProduct.Config = SoftmaxDotProduct.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(children=NAMES)

    def setup(self) -> None:
        """Declares the projections, norms and dot product."""
        cfg = self.config
        head_dim = head_dim_of(self)
        self.heads = Heads(cfg.input_dim, cfg.num_heads, cfg.num_kv_heads or cfg.num_heads, head_dim)
        add_projections(self, cfg, self.heads, memory_dim=cfg.memory_dim)
        widths = self.heads.norm_widths(cfg.norm_all_heads)
        for name, width in zip(("query_norm", "key_norm"), widths, strict=True):
            self.add_child(name, getattr(cfg, name), input_dim=width)
        self.add_child("sinks", cfg.sinks, num_heads=cfg.num_heads)
        self.add_child("gate", cfg.gate, input_dim=cfg.input_dim, num_heads=cfg.num_heads, head_dim=head_dim)
        scale = 1.0 / math.sqrt(head_dim) if cfg.scale is None else cfg.scale
        self.add_child("dot_product", cfg.dot_product, scale=scale, logit_cap=cfg.logit_cap)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns what tokens take from the memory, and the cache; raises ModuleError where there is no memory."""
        q = self.query(x)
        q = self.tag("query", q if self.query_norm is None else normed(self.query_norm, q, self.config.norm_all_heads))
        q = kn.constrain(q, ("batch", "length", "heads", "head_dim"))
        if sequences.memory is not None:
            k, v = self._keys_values(sequences.memory)
            segment_ids = sequences.memory_segment_ids
            cache = None if cache is None else _filled(cache, k, v, segment_ids)
        elif cache is not None:
            k, v, segment_ids = cache["keys"].astype(q.dtype), cache["values"].astype(q.dtype), cache["segment_ids"]
        else:
            message = f"{self.path}: cross attention without a cache needs Sequences.memory, which is None"
            raise ModuleError(message)
        positions = sequences.token_positions(x.shape[1])
        keys = CacheView(None, k, v)
        sinks = None if self.sinks is None else self.sinks()
        out = self.dot_product(q, keys, MaskSpec(), sequences, positions, sinks=sinks, kv_segment_ids=segment_ids)
        out = self.tag("attention_output", out)
        out = out if self.gate is None else self.gate(out, x)
        y = self.tag("attention_projection", self.output(out))
        return kn.constrain(y, ("batch", "length", "embed")), cache

    def _keys_values(self, memory: Float[Array, "B S M"]) -> tuple[jax.Array, jax.Array]:
        k = self.key(memory)
        k = k if self.key_norm is None else normed(self.key_norm, k, self.config.norm_all_heads)
        return self.tag("key", k), self.tag("value", self.value(memory))

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of the projected memory and of its segment ids, 0 where there is nothing."""
        size, heads = self.config.memory_length or length, self.heads
        shape, axes = (rows, size, heads.kv_heads, heads.head_dim), ("batch", None, "kv_heads", "head_dim")
        # Segment ids are cached with the keys: later calls get no memory but must still mask its padding.
        arrays = {name: kn.ParamSpec(shape, axes, dtype, kn.zeros) for name in ("keys", "values")}
        return {**arrays, "segment_ids": kn.ParamSpec((rows, size), ("batch", None), "int32", kn.zeros)}

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns the projections, a memory token counted for each token, plus scores and values."""
        seen = self.config.memory_length or context_length
        return super().flops_per_token(context_length) + 4.0 * self.heads.heads * self.heads.head_dim * seen


def _filled(cache: CacheState, k: jax.Array, v: jax.Array, segment_ids: jax.Array | None) -> CacheState:
    """Returns the cache with this memory in place of what was there; raises ModuleError where it doesn't fit."""
    length, size = k.shape[1], cache["keys"].shape[1]
    if length > size:
        message = f"the memory has {length} tokens but its cache holds {size}; raise memory_length"
        raise ModuleError(message)
    # A cache is often longer than its memory. Real segments count from 1, so that the rest, zeros, is padding.
    segment_ids = jnp.ones(k.shape[:2], jnp.int32) if segment_ids is None else segment_ids
    new = {"keys": k, "values": v, "segment_ids": segment_ids}

    def padded(name: str) -> jax.Array:
        array = new[name].astype(cache[name].dtype)
        return jnp.pad(array, [(0, 0), (0, size - length), *[(0, 0)] * (array.ndim - 2)])

    return {name: padded(name) for name in new}
