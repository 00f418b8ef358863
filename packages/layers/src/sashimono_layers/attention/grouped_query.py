"""Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245); its head counts make it multi-head or -query."""

import jax.numpy as jnp
import sashimono as sm
from jaxtyping import Array, Float
from sashimono.contracts import Attention, Cache, CacheState, Norm, Positions, Sequences
from sashimono.kernels import MaskSpec, attention

from sashimono_layers.attention.dense_cache import DenseCache
from sashimono_layers.basic.linear import Linear
from sashimono_layers.positions.rotary import Rotary


class GroupedQueryAttention(Attention):
    """Causal attention of `num_heads` query heads over `num_kv_heads` key and value heads.

    Slots: projections, positions, optional query and key norms, and the cache. Tags for remat: query, key, value,
    attention_output, attention_projection.
    """

    class Config(Attention.Config):
        num_heads: int = sm.REQUIRED
        num_kv_heads: int | None = None
        head_dim: int | None = None
        window: int | None = None
        logit_cap: float | None = None
        query: Linear.Config = Linear.Config()
        key: Linear.Config = Linear.Config()
        value: Linear.Config = Linear.Config()
        output: Linear.Config = Linear.Config()
        positions: Positions.Config = Rotary.Config()
        query_norm: Norm.Config | None = None
        key_norm: Norm.Config | None = None
        cache: Cache.Config = DenseCache.Config()

        def check(self) -> list[str]:
            """Returns what is wrong with the head counts."""
            kv_heads = self.num_kv_heads or self.num_heads
            if self.num_heads % kv_heads == 0:
                return []
            return [f"num_heads ({self.num_heads}) is not a multiple of num_kv_heads ({kv_heads})"]

    def setup(self) -> None:
        """Declares the projections [embed, heads, head_dim] and back, positions, norms and cache."""
        cfg = self.config
        self.num_kv_heads = cfg.num_kv_heads or cfg.num_heads
        self.head_dim = cfg.head_dim or cfg.input_dim // cfg.num_heads
        for name, heads, axis in (
            ("query", cfg.num_heads, "heads"),
            ("key", self.num_kv_heads, "kv_heads"),
            ("value", self.num_kv_heads, "kv_heads"),
        ):
            self.add_child(
                name,
                getattr(cfg, name),
                input_shape=(cfg.input_dim,),
                output_shape=(heads, self.head_dim),
                axes=("embed", axis, "head_dim"),
            )
        self.add_child(
            "output",
            cfg.output,
            input_shape=(cfg.num_heads, self.head_dim),
            output_shape=(cfg.input_dim,),
            axes=("heads", "head_dim", "embed"),
        )
        self.add_child("positions", cfg.positions, head_dim=self.head_dim)
        self.add_child("query_norm", cfg.query_norm, input_dim=self.head_dim)
        self.add_child("key_norm", cfg.key_norm, input_dim=self.head_dim)
        self.add_child(
            "cache",
            cfg.cache,
            num_kv_heads=self.num_kv_heads,
            key_dim=self.head_dim,
            value_dim=self.head_dim,
        )

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the attended activations and the extended cache."""
        cfg = self.config
        positions = sequences.token_positions(x.shape[1])
        q, k, v = self.query(x), self.key(x), self.value(x)
        q = q if self.query_norm is None else self.query_norm(q)
        k = k if self.key_norm is None else self.key_norm(k)
        q, k = self.positions.rotate(q, k, positions)
        q, k, v = self.tag("query", q), self.tag("key", k), self.tag("value", v)
        q = sm.constrain(q, ("batch", "length", "heads", "head_dim"))
        mask = MaskSpec(causal=True, window=None if cfg.window is None else (cfg.window - 1, 0))
        if cache is None:
            bias = self.positions.bias(positions, positions, cfg.num_heads)
            out = attention(
                q, k, v, mask=mask, bias=bias, logit_cap=cfg.logit_cap,
                q_segment_ids=sequences.segment_ids, kv_segment_ids=sequences.segment_ids,
            )  # fmt: skip
        else:
            view = self.cache.extend(cache, k, v, sequences)
            cache = view.state
            kv_positions = view.kv_positions
            if kv_positions is None:
                kv_positions = jnp.arange(view.k.shape[1], dtype=jnp.int32)[None]
            out = attention(
                q, view.k, view.v, mask=mask, logit_cap=cfg.logit_cap,
                bias=self.positions.bias(positions, kv_positions, cfg.num_heads),
                q_positions=positions, kv_positions=kv_positions,
                mode="decode" if x.shape[1] == 1 else "prefill",
            )  # fmt: skip
        out = self.tag("attention_output", out)
        y = self.tag("attention_projection", self.output(out))
        return sm.constrain(y, ("batch", "length", "embed")), cache

    @sm.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, sm.ParamSpec]:
        """Returns the layout of the cache slot."""
        return self.cache.spec(rows, length, dtype)

    @sm.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns projections plus scores and values: 4 * heads * head_dim FLOPs for each key seen."""
        seen = min(context_length, self.config.window or context_length)
        scores = 4.0 * self.config.num_heads * self.head_dim * seen
        return super().flops_per_token(context_length) + scores
