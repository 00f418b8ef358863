"""RAttention: a sliding window, and linear attention over the tokens before it (Wang et al. 2025, arXiv:2506.15545)."""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import CacheState, Positions, SequenceMixer, Sequences
from kanawa.kernels import MaskSpec
from kanawa.kernels.attention import attention
from kanawa.kernels.linear_recurrence import linear_recurrence
from kanawa.kernels.segments import Segments

from kanawa_layers.attention.projections import Heads, add_projections, head_dim_of
from kanawa_layers.basic.linear import Linear
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recurrent.causal_conv import entering, leaving, marks

#: The position of an empty key: after every query, so that causality hides it.
_NOWHERE = 2**30


class HeadNorm(kn.Module):
    """x / rms(x) * scale over the width of each head; fp32 inside, result in x's dtype."""

    class Config(kn.Module.Config):
        num_heads: kn.Size = kn.FROM_PARENT
        head_dim: kn.Size = kn.FROM_PARENT
        eps: kn.Epsilon = 1e-6
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"scale": "scale"})

    def setup(self) -> None:
        """Declares `scale`, [heads, head_dim], ones, never decayed."""
        shape = (self.config.num_heads, self.config.head_dim)
        self.add_param("scale", shape, axes=("heads", "head_dim"), init=kn.ones, weight_decay=0.0)

    def forward(self, x: Float[Array, "B T H D"]) -> Float[Array, "B T H D"]:
        """Returns the normalised heads."""
        x32 = x.astype(jnp.float32)
        y = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + self.config.eps)
        return (y * self.param("scale", jnp.float32)[None, None]).astype(x.dtype)


class RAttention(SequenceMixer):
    """norm(window attention) + norm(linear attention), sharing queries, keys and values.

    A query attends to `window` keys, its own included, with rotary positions; earlier keys, without positions, reach
    it through a state of feature(k) v^T, feature(x) = [softmax(x), softmax(-x)]. Each branch is normalised by head.
    The cache is a window of keys and values and the state, whatever the length. Tags for remat: query, key, value,
    attention_output, attention_projection.
    """

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    positions: Positions
    window_norm: HeadNorm
    linear_norm: HeadNorm

    class Config(SequenceMixer.Config):
        PLACEMENT = ("chunk_length",)

        num_heads: kn.Size = kn.REQUIRED
        num_kv_heads: kn.Size | None = None
        head_dim: kn.Size | None = None
        window: kn.Size = 512
        chunk_length: kn.Size | None = None
        query: Linear.Config = Linear.Config()
        key: Linear.Config = Linear.Config()
        value: Linear.Config = Linear.Config()
        output: Linear.Config = Linear.Config()
        positions: Positions.Config = Rotary.Config()
        window_norm: HeadNorm.Config = HeadNorm.Config()
        linear_norm: HeadNorm.Config = HeadNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "query": "q_proj",
                "key": "k_proj",
                "value": "v_proj",
                "output": "o_proj",
                "window_norm": "swa_norm",
                "linear_norm": "rla_norm",
            },
        )

        def check(self) -> list[str]:
            """Returns what is wrong with the head counts."""
            kv_heads = self.num_kv_heads or self.num_heads
            if self.num_heads % kv_heads == 0:
                return []
            return [f"num_heads ({self.num_heads}) is not a multiple of num_kv_heads ({kv_heads})"]

    def setup(self) -> None:
        """Declares projections, positions and both norms."""
        cfg = self.config
        self.kv_heads = cfg.num_kv_heads or cfg.num_heads
        self.head_dim = head_dim_of(self)
        add_projections(self, cfg, Heads(cfg.input_dim, cfg.num_heads, self.kv_heads, self.head_dim))
        self.add_child("positions", cfg.positions, head_dim=self.head_dim, num_heads=cfg.num_heads)
        for name in ("window_norm", "linear_norm"):
            self.add_child(name, getattr(cfg, name), num_heads=cfg.num_heads, head_dim=self.head_dim)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the mixed activations, and the cache with each row's last keys and values and its state."""
        old, segments, length = entering(cache, sequences, self.path), marks(sequences), x.shape[1]
        q, k, v = self.query(x), self.key(x), self.value(x)
        q, k, v = self.tag("query", q), self.tag("key", k), self.tag("value", v)
        q = kn.constrain(q, ("batch", "length", "heads", "head_dim"))
        empty = jnp.zeros((x.shape[0], self.config.window, *k.shape[2:]), k.dtype)
        keys = jnp.concatenate([old.get("keys", empty).astype(k.dtype), k], axis=1)
        values = jnp.concatenate([old.get("values", empty).astype(v.dtype), v], axis=1)
        states = self._states(sequences, segments, x.shape[:2], cached=cache is not None)
        far, state = self._far(q, keys, values, states, sequences, old.get("state"))
        if cache is None:
            near = self._near(q, k, v, sequences, None)
        else:
            near = self._near(q, keys, values, sequences, states)
        out = self.tag("attention_output", self.window_norm(near) + self.linear_norm(far))
        y = self.tag("attention_projection", self.output(out))
        carried = {"state": state, **_last((keys, values), segments, self.config.window, length)}
        return kn.constrain(y, ("batch", "length", "embed")), leaving(cache, carried, sequences)

    def _states(
        self, sequences: Sequences, segments: Segments | None, shape: tuple[int, ...], cached: bool
    ) -> Int[Array, "B WT"]:
        """Returns which state each of the window before the call and its tokens shares; -1 where there is no token."""
        window = self.config.window
        now = jnp.zeros(shape, jnp.int32) if segments is None else segments.resets
        if not cached or sequences.lengths is None:
            return jnp.pad(now, ((0, 0), (window, 0)), constant_values=-1)
        lengths = jnp.broadcast_to(sequences.lengths, shape[:1])
        before = jnp.where(jnp.arange(window)[None] >= window - lengths[:, None], 0, -1)
        return jnp.concatenate([before, now], axis=1)

    def _near(
        self,
        q: Float[Array, "B T H D"],
        k: Float[Array, "B S K D"],
        v: Float[Array, "B S K D"],
        sequences: Sequences,
        states: Int[Array, "B S"] | None,
    ) -> Float[Array, "B T H D"]:
        """Returns the softmax over the window; `states` marks the valid keys where some come from the cache."""
        mask = MaskSpec(causal=True, window=(self.config.window - 1, None))
        length = q.shape[1]
        positions = sequences.token_positions(length)
        if states is None:
            q, k = self.positions.rotate(q, k, positions)
            ids = sequences.segment_ids
            return attention(q, k, v, mask=mask, q_segment_ids=ids, kv_segment_ids=ids)
        before = positions[:, :1] + jnp.arange(-self.config.window, 0, dtype=positions.dtype)[None]
        kv_positions = jnp.concatenate([before, positions], axis=1)
        # Queries and keys have different positions here, and `rotate` takes one for both.
        q, k = self.positions.rotate(q, q, positions)[0], self.positions.rotate(k, k, kv_positions)[1]
        kv_positions = jnp.where(states < 0, _NOWHERE, kv_positions)
        return attention(
            q, k, v, mask=mask, q_positions=positions, kv_positions=kv_positions,
            mode="decode" if length == 1 else "prefill",
        )  # fmt: skip

    def _far(
        self,
        q: Float[Array, "B T H D"],
        keys: Float[Array, "B WT K D"],
        values: Float[Array, "B WT K D"],
        states: Int[Array, "B WT"],
        sequences: Sequences,
        state: Float[Array, "B H F D"] | None,
    ) -> tuple[Float[Array, "B T H D"], Float[Array, "B H F D"]]:
        """Returns the attention over keys before the window, and the state: each key enters it `window` tokens late."""
        length = q.shape[1]
        repeats = self.config.num_heads // self.kv_heads
        # Keys begin a window before the call, so keys[t] leaves the window at token t; it enters the state only if both
        # belong to the same sequence.
        known = states[:, :length] == states[:, self.config.window :]
        late = jnp.where(known[..., None, None], _features(keys[:, :length]), jnp.zeros((), keys.dtype))
        return linear_recurrence(
            _features(q),
            jnp.repeat(late, repeats, axis=2),
            jnp.repeat(values[:, :length], repeats, axis=2),
            initial_state=state,
            segment_ids=sequences.segment_ids,
            chunk_length=self.config.chunk_length,
        )

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of a window of keys and values in `dtype`, and the fp32 state; `length` doesn't matter."""
        cfg, width = self.config, self.head_dim
        shape = (rows, cfg.window, self.kv_heads, width)
        window_spec = kn.ParamSpec(shape, ("batch", None, "kv_heads", "head_dim"), dtype, kn.zeros)
        shape = (rows, cfg.num_heads, 2 * width, width)
        state = kn.ParamSpec(shape, ("batch", "heads", "state", "head_dim"), "float32", kn.zeros)
        return {"keys": window_spec, "values": window_spec, "state": state}

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns projections, scores and values of the window, and 4 FLOPs an element of the state."""
        heads, width = self.config.num_heads, self.head_dim
        near = 4.0 * heads * width * min(context_length, self.config.window)
        return float(super().flops_per_token(context_length) + near + 4.0 * heads * 2 * width * width)


def _features(x: Float[Array, "B T H D"]) -> Float[Array, "B T H F"]:
    """Returns [softmax(x), softmax(-x)], fp32 inside: positive features, twice as wide."""
    x32 = x.astype(jnp.float32)
    return jnp.concatenate([jax.nn.softmax(x32), jax.nn.softmax(-x32)], axis=-1).astype(x.dtype)


def _last(
    arrays: tuple[Float[Array, "B WT K D"], ...], segments: Segments | None, window: int, length: int
) -> dict[str, jax.Array]:
    """Returns the last `window` real keys and values of each row."""
    keys, values = arrays
    if segments is None:
        return {"keys": keys[:, length:], "values": values[:, length:]}
    count = jnp.sum(segments.real, axis=1, dtype=jnp.int32)
    # The previous window comes first, so the last `window` real tokens begin at `count`.
    places = (count[:, None] + jnp.arange(window, dtype=jnp.int32)[None])[..., None, None]
    return {name: jnp.take_along_axis(array, places, axis=1) for name, array in (("keys", keys), ("values", values))}
