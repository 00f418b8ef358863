"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): one cached vector a token."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Cache, CacheState, CacheView, Norm, Positions, SequenceMixer, Sequences

from kanawa_layers.attention.dense_cache import DenseCache
from kanawa_layers.attention.dot_product import DotProduct, SoftmaxDotProduct, key_positions, score_offsets
from kanawa_layers.attention.key_sharing import KeySharing, offer_keys, taken_keys, takes_keys
from kanawa_layers.attention.masks import Causal, Mask, narrowed, reach, window_problems
from kanawa_layers.attention.slots import OutputGate, Sinks
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.positions.rotary import Rotary


class LatentAttention(SequenceMixer):
    """Keys and values of all heads are projections of one latent; one further key, shared by all heads, is rotated.

    Widths: `kv_rank` of the latent, `query_rank` of the queries' own (None: queries straight from the stream),
    `nope_dim` and `rope_dim` of a head's unrotated and rotated query and key, `value_dim` of its value. Training
    expands keys and values. A cache holds only the latent and the rotated key, and the expansion moves into queries and
    outputs ("absorbed"): every head then attends over the latents themselves. `scale` None is (nope_dim + rope_dim) **
    -0.5; with YaRN, DeepSeek multiplies it by `yarn_mscale(...) ** 2`. `sharing` offers the latent to later layers, or
    takes an earlier one's: `kv_down`, `kv_norm`, `cache` are then unused. Tags for remat: query, latent, key, value,
    attention_output, attention_projection.
    """

    query: Linear | None
    query_down: Linear | None
    query_norm: Norm | None
    query_up: Linear | None
    kv_down: Linear | None
    kv_norm: Norm | None
    kv_up: Linear
    output: Linear
    positions: Positions
    sinks: Sinks | None
    gate: OutputGate | None
    dot_product: DotProduct
    cache: Cache | None

    class Config(SequenceMixer.Config):
        num_heads: kn.Size = kn.REQUIRED
        kv_rank: kn.Size = kn.REQUIRED
        query_rank: kn.Size | None = None
        nope_dim: kn.Count = kn.REQUIRED
        rope_dim: kn.Count = kn.REQUIRED
        value_dim: kn.Size = kn.REQUIRED
        mask: Mask.Config = Causal.Config()
        window: kn.Size | None = None
        scale: kn.Finite | None = None
        logit_cap: kn.Positive | None = None
        query: Linear.Config = Linear.Config()
        query_down: Linear.Config = Linear.Config()
        query_norm: Norm.Config = RMSNorm.Config()
        query_up: Linear.Config = Linear.Config()
        kv_down: Linear.Config = Linear.Config()
        kv_norm: Norm.Config = RMSNorm.Config()
        kv_up: Linear.Config = Linear.Config()
        output: Linear.Config = Linear.Config()
        positions: Positions.Config = Rotary.Config(interleaved=True)
        sinks: Sinks.Config | None = None
        gate: OutputGate.Config | None = None
        dot_product: DotProduct.Config = SoftmaxDotProduct.Config()
        cache: Cache.Config = DenseCache.Config()
        sharing: KeySharing.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "query": "q_proj",
                "query_down": "q_a_proj",
                "query_norm": "q_a_layernorm",
                "query_up": "q_b_proj",
                "kv_down": "kv_a_proj_with_mqa",
                "kv_norm": "kv_a_layernorm",
                "kv_up": "kv_b_proj",
                "output": "o_proj",
                "positions": "",
                "sinks": "",
                "gate": "gate_proj",
            }
        )

        def check(self) -> list[str]:
            """Returns what is wrong with the window and the projections."""
            # Absorbing means q . (W c) = (W^T q) . c; a bias would add a term q . b.
            biased = ["kv_up has a bias, which can't be absorbed into queries"] if self.kv_up.bias else []
            return window_problems(self.mask, self.window) + biased

    def setup(self) -> None:
        """Declares the projections down to the latents and up to the heads, norms, positions and cache."""
        cfg = self.config
        self.mask = narrowed(cfg.mask, cfg.window)
        self.takes_keys = takes_keys(cfg.sharing)
        _add_projections(self, cfg, own_latent=not self.takes_keys)
        self.add_child("positions", cfg.positions, head_dim=cfg.rope_dim, num_heads=cfg.num_heads)
        self.add_child("sinks", cfg.sinks, num_heads=cfg.num_heads)
        self.add_child("gate", cfg.gate, input_dim=cfg.input_dim, num_heads=cfg.num_heads, head_dim=cfg.value_dim)
        scale = 1.0 / math.sqrt(cfg.nope_dim + cfg.rope_dim) if cfg.scale is None else cfg.scale
        self.add_child("dot_product", cfg.dot_product, scale=scale, logit_cap=cfg.logit_cap)
        self.add_child(
            "cache",
            None if self.takes_keys else cfg.cache,
            num_kv_heads=1,
            key_dim=cfg.kv_rank + cfg.rope_dim,
            value_dim=0,
            reach=reach(self.mask),
        )

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the attended activations and the extended cache."""
        cfg = self.config
        positions = sequences.token_positions(x.shape[1])
        coordinates = positions if sequences.coordinates is None else sequences.coordinates
        # Order within a head is [nope, rope], and [latent, rope] in kv_down and in the cache: DeepSeek's layout.
        q_nope, q_rope = jnp.split(self._queries(x), [cfg.nope_dim], axis=-1)
        if self.takes_keys:
            q_rope, _ = self.positions.rotate(q_rope, q_rope[:, :, :0], coordinates)
            keys = taken_keys(self, cfg.sharing, self.mask, cfg.kv_rank + cfg.rope_dim, cfg.num_heads)
        else:
            assert self.kv_down and self.kv_norm and self.cache  # None only in a layer that takes keys
            latent, k_rope = jnp.split(self.kv_down(x), [cfg.kv_rank], axis=-1)
            # The norm is on the latent alone: DeepSeek rotates and caches the shared key without a norm.
            latent = self.tag("latent", self.kv_norm(latent))
            q_rope, k_rope = self.positions.rotate(q_rope, k_rope[:, :, None], coordinates)
            # The compiler removes this where there is no cache and no layer takes the keys.
            cached = jnp.concatenate([latent[:, :, None], k_rope], axis=-1)
            keys = CacheView(None, cached, None) if cache is None else self.cache.extend(cache, cached, None, sequences)
            offer_keys(self, cfg.sharing, keys, self.mask)
        # Absorbed, a head is kv_rank + rope_dim wide instead of nope_dim + rope_dim (576 against 192 in DeepSeek-V3):
        # three times the FLOPs of scores, which pays off only where reading the cache dominates.
        if keys.state is not None:
            out = self._absorbed(q_nope, q_rope, keys, sequences)
        else:
            if self.takes_keys:
                latent, k_rope = jnp.split(keys.k, [cfg.kv_rank], axis=-1)
                latent = latent[:, :, 0]
            out = self._expanded(q_nope, q_rope, latent, k_rope, sequences)
        state = cache if self.takes_keys else keys.state
        out = self.tag("attention_output", out)
        out = out if self.gate is None else self.gate(out, x)
        y = self.tag("attention_projection", self.output(out))
        return kn.constrain(y, ("batch", "length", "embed")), state

    def _queries(self, x: Float[Array, "B T E"]) -> Float[Array, "B T H D"]:
        if self.query is not None:
            return self.query(x)
        assert self.query_down and self.query_norm and self.query_up  # set up in place of `query`
        return self.query_up(self.query_norm(self.query_down(x)))

    def _expanded(
        self,
        q_nope: Float[Array, "B T H N"],
        q_rope: Float[Array, "B T H R"],
        latent: Float[Array, "B T L"],
        k_rope: Float[Array, "B T 1 R"],
        sequences: Sequences,
    ) -> Float[Array, "B T H V"]:
        """Returns attention over the keys and values of every head."""
        k_nope, v = jnp.split(self.kv_up(latent), [self.config.nope_dim], axis=-1)
        # Kernels want keys of one width, so the shared rotated part is written out for every head.
        k_rope = jnp.broadcast_to(k_rope, (*k_nope.shape[:3], k_rope.shape[-1]))
        q = self._sharded(self.tag("query", jnp.concatenate([q_nope, q_rope], axis=-1)))
        k = self.tag("key", jnp.concatenate([k_nope, k_rope], axis=-1))
        expanded = CacheView(None, k, self.tag("value", v))
        positions = sequences.token_positions(q.shape[1])
        added = score_offsets(self.dot_product, self.positions, positions, positions, self.config.num_heads)
        return self.dot_product(q, expanded, self.mask, sequences, positions, sinks=self._sinks(), **added)

    def _absorbed(
        self, q_nope: Float[Array, "B T H N"], q_rope: Float[Array, "B T H R"], keys: CacheView, sequences: Sequences
    ) -> Float[Array, "B T H V"]:
        """Returns the same over the latents of the cache, which serve as keys and values of one shared head."""
        cfg = self.config
        to_key, to_value = jnp.split(self._up_weight(q_nope.dtype), [cfg.nope_dim], axis=-1)
        # The scale is still that of the expanded width, nope_dim + rope_dim: the scores are the same.
        q_latent = jnp.einsum("bthn,lhn->bthl", q_nope, to_key)
        q = self._sharded(jnp.concatenate([q_latent, q_rope], axis=-1))
        positions = sequences.token_positions(q.shape[1])
        added = score_offsets(self.dot_product, self.positions, positions, key_positions(keys), cfg.num_heads)
        # Values are the keys, rotated part included: dropping that part afterwards is cheaper than copying the cache
        # without it.
        mixed = self.dot_product(q, keys, self.mask, sequences, positions, sinks=self._sinks(), **added)
        return jnp.einsum("bthl,lhv->bthv", mixed[..., : cfg.kv_rank], to_value)

    def _sinks(self) -> Float[Array, " H"] | None:
        return None if self.sinks is None else self.sinks()

    def _up_weight(self, dtype: jnp.dtype) -> Float[Array, "L H N_plus_V"]:
        """Returns the weight of `kv_up`; an adapter is included by applying the layer to the identity."""
        if self.kv_up.adapter is None:
            return self.kv_up.dense_weight("weight")
        return self.kv_up(jnp.eye(self.config.kv_rank, dtype=dtype)[None])[0]

    @staticmethod
    def _sharded(q: Float[Array, "B T H D"]) -> jax.Array:
        return kn.constrain(q, ("batch", "length", "heads", "head_dim"))

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of the cache slot, kv_rank + rope_dim numbers a token; nothing where keys are taken."""
        return {} if self.cache is None else self.cache.spec(rows, length, dtype)

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns projections plus scores and values of expanded heads for each key seen."""
        cfg = self.config
        seen = min(context_length, reach(self.mask) or context_length)
        scores = 2.0 * cfg.num_heads * (cfg.nope_dim + cfg.rope_dim + cfg.value_dim) * seen
        return float(super().flops_per_token(context_length) + scores)


def _add_projections(layer: kn.Module, cfg: Any, *, own_latent: bool = True) -> None:
    """Declares `query` or `query_down`, `query_norm`, `query_up`; `kv_down`, `kv_norm`, `kv_up`; and `output`.

    `kv_down` makes the latent and, after it, the shared key that is rotated; `kv_up` makes each head's key without
    rotation and, after it, its value. Without `own_latent` there is no `kv_down` and no `kv_norm`.
    """
    model, heads, query_dim = cfg.input_dim, cfg.num_heads, cfg.nope_dim + cfg.rope_dim
    low_rank = cfg.query_rank is not None

    def add(
        name: str, wanted: bool, inputs: tuple[int, ...], outputs: tuple[int, ...], axes: tuple[str | None, ...]
    ) -> None:
        slot = getattr(cfg, name) if wanted else None
        layer.add_child(name, slot, input_shape=inputs, output_shape=outputs, axes=axes)

    add("query", not low_rank, (model,), (heads, query_dim), ("embed", "heads", "head_dim"))
    rank = cfg.query_rank or 0
    add("query_down", low_rank, (model,), (rank,), ("embed", None))
    layer.add_child("query_norm", cfg.query_norm if low_rank else None, input_dim=rank)
    add("query_up", low_rank, (rank,), (heads, query_dim), (None, "heads", "head_dim"))
    # The latent isn't split: every head needs all of it, so shards would have to be gathered for each projection.
    add("kv_down", own_latent, (model,), (cfg.kv_rank + cfg.rope_dim,), ("embed", None))
    layer.add_child("kv_norm", cfg.kv_norm if own_latent else None, input_dim=cfg.kv_rank)
    add("kv_up", True, (cfg.kv_rank,), (heads, cfg.nope_dim + cfg.value_dim), (None, "heads", "head_dim"))
    add("output", True, (heads, cfg.value_dim), (model,), ("heads", "head_dim", "embed"))
