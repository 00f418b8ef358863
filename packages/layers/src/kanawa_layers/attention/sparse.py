"""DeepSeek sparse attention: a small indexer scores all earlier tokens, and each query attends to the best of them.

Legend: B rows, T queries, S keys, H heads of attention, I heads of the indexer, D width of an index key.
"""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Bool, Float, Int
from kanawa.contracts import Cache, CacheState, CacheView, Norm, Positions, SequenceMixer, Sequences
from kanawa.errors import ConfigError, ModuleError
from kanawa.kernels import MaskSpec

from kanawa_layers.attention.dense_cache import DenseCache
from kanawa_layers.attention.dot_product import DotProduct, SoftmaxDotProduct, key_positions
from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.latent import LatentAttention
from kanawa_layers.attention.masks import reach
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.positions.rotary import Rotary

#: The name under which an attention offers its indexer's scores to its dot product.
_SCORES = "index scores"
#: What hides a key in a softmax. Finite: the gradient at infinities is NaN.
_HIDDEN = -1e30
#: Queries whose attention weights exist at one time while the indexer learns from them.
_TOGETHER = 256


class LightningIndexer(kn.Module):
    """Scores sum over I of w_i relu(q_i . k) [B, T, S], fp32 (DeepSeek-V3.2, arXiv:2512.02556, section 2.1).

    Queries come from `query_dim` activations, keys (one head, normalised) and weights from the stream. The first
    `rope_dim` channels are rotated. No gradient flows into its inputs: it learns from the attention's weights alone.
    """

    query: Linear
    key: Linear
    key_norm: Norm
    weights: Linear
    positions: Positions

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        query_dim: kn.Size = kn.FROM_PARENT
        num_heads: kn.Size = 64
        head_dim: kn.Size = 128
        rope_dim: kn.Count = 64
        query: Linear.Config = Linear.Config()
        key: Linear.Config = Linear.Config()
        key_norm: Norm.Config = LayerNorm.Config(eps=1e-6)
        weights: Linear.Config = Linear.Config()
        positions: Positions.Config = Rotary.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "query": "wq_b",
                "key": "wk",
                "key_norm": "k_norm",
                "weights": "weights_proj",
                "positions": "",
            }
        )

    def setup(self) -> None:
        """Declares the projections of queries [I, D], of the key [D], and of each head's weight."""
        cfg = self.config
        shapes = {
            "query": (cfg.query_dim, (cfg.num_heads, cfg.head_dim), ("embed", "heads", "head_dim")),
            "key": (cfg.input_dim, (cfg.head_dim,), ("embed", None)),
            "weights": (cfg.input_dim, (cfg.num_heads,), ("embed", "heads")),
        }
        for name, (inputs, outputs, axes) in shapes.items():
            self.add_child(name, getattr(cfg, name), input_shape=(inputs,), output_shape=outputs, axes=axes)
        self.add_child("key_norm", cfg.key_norm, input_dim=cfg.head_dim)
        self.add_child("positions", cfg.positions, head_dim=cfg.rope_dim, num_heads=cfg.num_heads)

    def forward(
        self, x: Float[Array, "B T E"], queries: Float[Array, "B T Q"], positions: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B T I D"], Float[Array, "B T 1 D"], Float[Array, "B T I"]]:
        """Returns rotated queries and key, and the weights of the heads, fp32, scaled by (I D) ** -0.5."""
        cfg, x = self.config, jax.lax.stop_gradient(x)
        q, k = self.query(jax.lax.stop_gradient(queries)), self.key_norm(self.key(x))[:, :, None]
        (q_turned, q), (k_turned, k) = (jnp.split(part, [cfg.rope_dim], axis=-1) for part in (q, k))
        q_turned, k_turned = self.positions.rotate(q_turned, k_turned, positions)
        q, k = jnp.concatenate([q_turned, q], axis=-1), jnp.concatenate([k_turned, k], axis=-1)
        return q, k, self.weights(x).astype(jnp.float32) * (cfg.num_heads * cfg.head_dim) ** -0.5

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns projections, and two FLOPs a channel and head for each key."""
        cfg = self.config
        return float(super().flops_per_token(context_length) + 2.0 * cfg.num_heads * cfg.head_dim * context_length)


def index_scores(
    q: Float[Array, "B T I D"], k: Float[Array, "B S 1 D"], weights: Float[Array, "B T I"]
) -> Float[Array, "B T S"]:
    """Returns each key's score for each query, fp32; whether the query may see the key isn't looked at."""
    products = jnp.einsum("btid,bsd->btis", q, k[:, :, 0], preferred_element_type=jnp.float32)
    return jnp.einsum("btis,bti->bts", jax.nn.relu(products), weights)


class SelectedDotProduct(SoftmaxDotProduct):
    """Softmax over the `top_k` keys of the highest index scores of each query, all heads alike.

    One query a row, with a dense cache, reads these keys alone; otherwise the others are hidden from a kernel that
    reads all. In training it adds `index_loss`, the divergence of the indexer's softmax over the selected keys from the
    mean of the heads' attention weights (section 2.1, equation 4), times `coefficient`. The mask must be causal.
    """

    class Config(SoftmaxDotProduct.Config):
        top_k: kn.Size = 2048
        coefficient: kn.NonNegative = 0.01

    def forward(
        self,
        q: Float[Array, "B T H D"],
        keys: CacheView,
        mask: MaskSpec,
        sequences: Sequences,
        positions: Int[Array, "B T"],
        bias: Float[Array, "B H T S"] | None = None,
        sinks: Float[Array, " H"] | None = None,
        kv_segment_ids: Int[Array, "B S"] | None = None,
        alibi_slopes: Float[Array, " H"] | None = None,
    ) -> Float[Array, "B T H V"]:
        """Returns the weighted values; raises ModuleError for masks that aren't causal, and for keys of others."""
        if not mask.causal or mask.needs_prefix or kv_segment_ids is not None:
            message = f"{self.path}: sparse attention needs a causal mask over its own row, got {mask.describe()}"
            raise ModuleError(message)
        cfg, scores = self.config, self.offered(_SCORES)
        rest = {"sinks": sinks, "alibi_slopes": alibi_slopes}
        kv_positions = positions if keys.state is None else key_positions(keys)
        ids = sequences.segment_ids if keys.state is None else None
        whole = mask if ids is None else mask & MaskSpec(segments=True)
        # A causal mask always hides something, and so is never None.
        seen: Any = whole.allowed(positions, kv_positions, ids, ids)
        allowed = jnp.broadcast_to(seen, scores.shape)
        visible = jnp.where(allowed, scores, -jnp.inf)
        few = scores.shape[-1] <= cfg.top_k
        if not few and keys.state is not None and q.shape[1] == 1 and keys.page_table is None and bias is None:
            best = jax.lax.top_k(visible, cfg.top_k)[1][:, 0]
            at = best[..., None, None]
            k = jnp.take_along_axis(keys.k, at, axis=1)
            v = None if keys.v is None else jnp.take_along_axis(keys.v, at, axis=1)
            placed = jnp.take_along_axis(jnp.broadcast_to(kv_positions, (best.shape[0], scores.shape[-1])), best, 1)
            return super().forward(q, CacheView(keys.state, k, v, placed), mask, sequences, positions, **rest)
        if not few:
            best = jax.lax.top_k(visible, cfg.top_k)[1]
            allowed &= jnp.put_along_axis(jnp.zeros_like(allowed), best, True, axis=-1, inplace=False)  # noqa: FBT003
            hidden = jnp.where(allowed, 0.0, -jnp.inf)[:, None]
            bias = hidden if bias is None else bias + hidden
        if self.train and keys.state is None and cfg.coefficient:
            self._learn(q, keys.k, allowed, scores, ids)
        return super().forward(q, keys, mask, sequences, positions, bias, **rest)

    def _learn(
        self, q: jax.Array, k: jax.Array, allowed: Bool[Array, "B T S"], scores: jax.Array, ids: jax.Array | None
    ) -> None:
        cfg = self.config
        target = _mean_weights(q, k, allowed, cfg.scale, cfg.logit_cap)
        logs = jax.nn.log_softmax(jnp.where(allowed, scores, _HIDDEN), axis=-1)
        each = jnp.sum(jnp.where(allowed, jax.scipy.special.xlogy(target, target) - target * logs, 0.0), axis=-1)
        weights = jnp.ones(each.shape) if ids is None else (ids > 0).astype(jnp.float32)
        self.add_loss("index_loss", jnp.sum(each * weights), jnp.sum(weights), cfg.coefficient)


def _mean_weights(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], allowed: jax.Array, scale: float, cap: float | None
) -> Float[Array, "B T S"]:
    """Returns the mean of the heads' attention weights, fp32, without a gradient, a part of the queries at a time."""
    q, k = jax.lax.stop_gradient(q), jax.lax.stop_gradient(k)
    k = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
    parts = []
    for start in range(0, q.shape[1], _TOGETHER):
        part = slice(start, start + _TOGETHER)
        scores = jnp.einsum("bthd,bshd->bhts", q[:, part], k, preferred_element_type=jnp.float32) * scale
        scores = scores if cap is None else cap * jnp.tanh(scores / cap)
        scores = jnp.where(allowed[:, None, part], scores, _HIDDEN)
        parts.append(jnp.mean(jax.nn.softmax(scores, axis=-1), axis=1))
    return jnp.concatenate(parts, axis=1)


class _Indexed(SequenceMixer):
    """What both kinds of attention add: an indexer, a cache of its keys, and the offer of its scores."""

    indexer: LightningIndexer
    index_cache: Cache

    class Config(SequenceMixer.Config):
        indexer: LightningIndexer.Config = LightningIndexer.Config()
        index_cache: Cache.Config = DenseCache.Config()
        dot_product: DotProduct.Config = SelectedDotProduct.Config()

    def setup(self) -> None:
        """Declares the attention, the indexer and its cache."""
        super().setup()
        cfg: Any = self.config
        query_dim = getattr(cfg, "query_rank", None) or cfg.input_dim
        self.add_child("indexer", cfg.indexer, input_dim=cfg.input_dim, query_dim=query_dim)
        shape = {"num_kv_heads": 1, "key_dim": cfg.indexer.head_dim, "value_dim": 0, "reach": reach(self.mask)}  # type: ignore[attr-defined]
        self.add_child("index_cache", cfg.index_cache, **shape)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the attended activations and the extended caches, the indexer's among them."""
        if sequences.query_starts is not None:
            message = f"{self.path}: sparse attention doesn't support a ragged row (query_starts): use separate rows"
            raise ModuleError(message)
        q, k, weights = self.indexer(x, self._index_queries(x), sequences.token_positions(x.shape[1]))
        state: CacheState = {}
        if cache is not None:
            index = {name.removeprefix(_INDEX): x for name, x in cache.items() if name.startswith(_INDEX)}
            cache = {name: x for name, x in cache.items() if not name.startswith(_INDEX)}
            view = self.index_cache.extend(index, k, None, sequences)
            state = {_INDEX + name: x for name, x in (view.state or {}).items()}
            k = view.k if view.page_table is None else view.k[view.page_table].reshape(x.shape[0], -1, 1, k.shape[-1])
        self.offer(_SCORES, index_scores(q, k.astype(q.dtype), weights))
        # The next class is an attention.
        y, cache = super().forward(x, sequences, cache)  # type: ignore[safe-super]
        return y, None if cache is None else {**cache, **state}

    def _index_queries(self, x: Float[Array, "B T E"]) -> Float[Array, "B T Q"]:
        return x

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layouts of the attention's cache and of the index keys."""
        index = self.index_cache.spec(rows, length, dtype)
        return {**super().cache_spec(rows, length, dtype), **{_INDEX + name: spec for name, spec in index.items()}}


#: What names of the indexer's cache begin with.
_INDEX = "index_"


class SparseAttention(_Indexed, GroupedQueryAttention):
    """Grouped-query attention to the keys that an indexer selects; index queries come from the stream."""

    class Config(_Indexed.Config, GroupedQueryAttention.Config):
        dot_product: DotProduct.Config = SelectedDotProduct.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={**GroupedQueryAttention.Config().foreign.children, "indexer": "indexer"}
        )


class SparseLatentAttention(_Indexed, LatentAttention):
    """Latent attention to the keys that an indexer selects; index queries come from the queries' latent, if any."""

    class Config(_Indexed.Config, LatentAttention.Config):
        dot_product: DotProduct.Config = SelectedDotProduct.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={**LatentAttention.Config().foreign.children, "indexer": "indexer"}
        )

    def _index_queries(self, x: Float[Array, "B T E"]) -> Float[Array, "B T Q"]:
        if self.query_down is None or self.query_norm is None:
            return x
        # The compiler merges it with the attention's own.
        with kn.call_name("index"):
            return self.query_norm(self.query_down(x))


class SparseAttentions(kn.Modifier):
    """`sparse-attention`: each query attends to the `top_k` keys that an indexer selects (DeepSeek-V3.2)."""

    class Config(kn.Modifier.Config):
        top_k: kn.Size = 2048
        heads: kn.Size = 64
        head_dim: kn.Size = 128
        rope_dim: kn.Count = 64
        coefficient: kn.NonNegative = 0.01
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every plain or latent attention under `where` sparse; raises ConfigError for others."""
        own = self.config
        kinds = {GroupedQueryAttention.Config: SparseAttention, LatentAttention.Config: SparseLatentAttention}

        def sparse(node: Any) -> kn.Config:
            kind: Any = kinds.get(type(node))
            if kind is None or node.sharing is not None or not isinstance(node.dot_product, SoftmaxDotProduct.Config):
                message = (
                    f"sparse-attention: {type(node).__qualname__} isn't supported; expected grouped-query or latent "
                    f"attention with a softmax of its own keys"
                )
                raise ConfigError(message)
            indexer = LightningIndexer.Config(num_heads=own.heads, head_dim=own.head_dim, rope_dim=own.rope_dim)
            selected = SelectedDotProduct.Config(top_k=own.top_k, coefficient=own.coefficient)
            new: kn.Config = kind.Config(indexer=indexer, dot_product=selected)
            return new

        kn.replace(cfg, target=(GroupedQueryAttention, LatentAttention), new=sparse, where=own.where)
        return cfg
