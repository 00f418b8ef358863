"""The state of recurrent layers between calls, and the short causal convolution before their recurrence."""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.arrays.broadcast import along_last
from kanawa.contracts import CacheState, Sequences
from kanawa.errors import ModuleError
from kanawa.kernels.segments import Segments, segments

from kanawa_layers.attention.dense_cache import put_rows, take_rows


def entering(cache: CacheState | None, sequences: Sequences, path: str) -> CacheState:
    """Returns this batch's rows of the cache, zeros for rows whose length is 0, whatever they contained.

    Empty without a cache. Raises ModuleError for a ragged row: it holds several sequences, and a state belongs to one.
    """
    if cache is None:
        return {}
    if sequences.query_starts is not None:
        message = (
            f"{path} got one ragged row (query_starts), but has a state for each row: "
            f"use a separate row for every sequence, padded with segment id 0"
        )
        raise ModuleError(message)
    # Slots aren't cleared for a new sequence: causality hides old keys, but not an old state.
    lengths = jnp.zeros((), jnp.int32) if sequences.lengths is None else sequences.lengths

    def unless_new(x: jax.Array) -> jax.Array:
        new = (lengths == 0).reshape(lengths.shape + (1,) * (x.ndim - lengths.ndim) * lengths.ndim)
        return jnp.where(new, jnp.zeros((), x.dtype), x)

    return {name: unless_new(rows) for name, rows in take_rows(cache, sequences).items()}


def leaving(cache: CacheState | None, rows: CacheState, sequences: Sequences) -> CacheState | None:
    """Returns the whole cache with this batch's rows replaced, in the cache's dtypes; None without a cache."""
    if cache is None:
        return None
    rows = {name: array.astype(cache[name].dtype) for name, array in rows.items()}
    return put_rows(cache, rows, sequences)


def marks(sequences: Sequences) -> Segments | None:
    """Returns where states reset and which tokens are real; None where each row is one unpadded segment."""
    return None if sequences.segment_ids is None else segments(sequences.segment_ids)


class CausalConv(kn.Module):
    """y_t = sum over lags j < width of weight[width - 1 - j] * x_(t - j), within a segment; sums in fp32.

    Its state between calls is its tail: the last width - 1 inputs of each row. Padding must lie at the end of a row.
    `weight` is drawn with variance init_scale / width; 1/3 is that of torch's uniform.
    """

    class Config(kn.Module.Config):
        channels: kn.Size = kn.FROM_PARENT
        axis: str | None = kn.FROM_PARENT
        width: kn.Size = 4
        bias: bool = True
        init_scale: kn.NonNegative = 1 / 3
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={
                # PyTorch's [channels, 1, width]; the last tap is the newest token there as well.
                "weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Permuted.Config(order=(1, -1, 0))),
                "bias": "bias",
            }
        )

    def setup(self) -> None:
        """Declares `weight` [width, channels] and `bias`."""
        cfg = self.config
        init = kn.fan_in_normal(cfg.init_scale)
        self.add_param("weight", (cfg.width, cfg.channels), axes=("conv", cfg.axis), init=init)
        if cfg.bias:
            self.add_param("bias", (cfg.channels,), axes=(cfg.axis,), init=kn.zeros, weight_decay=0.0)

    def forward(
        self, x: Float[Array, "B T C"], segments: Segments | None, tail: Float[Array, "B lags C"] | None = None
    ) -> tuple[Float[Array, "B T C"], Float[Array, "B lags C"]]:
        """Returns the convolved activations in x's dtype, and the tail for the tokens that follow."""
        lags, length = self.config.width - 1, x.shape[1]
        before = jnp.zeros((x.shape[0], lags, x.shape[2]), x.dtype) if tail is None else tail.astype(x.dtype)
        if segments is not None:
            x = jnp.where(segments.real[..., None], x, jnp.zeros((), x.dtype))
        inputs = jnp.concatenate([before, x], axis=1)
        # Zeros before the row match a first segment that continues the tail, and no other.
        resets = None if segments is None else jnp.pad(segments.resets, ((0, 0), (lags, 0)))
        weight = self.param("weight", jnp.float32)
        y = jnp.zeros(x.shape, jnp.float32)
        # A few shifted multiplications, which XLA fuses, and which can stop at a segment: a convolution can't.
        for tap in range(lags + 1):
            shifted = inputs[:, tap : tap + length].astype(jnp.float32) * along_last(weight[tap], 3)
            if resets is not None:
                same = resets[:, tap : tap + length] == resets[:, lags:]
                shifted = jnp.where(same[..., None], shifted, 0.0)
            y = y + shifted
        if self.config.bias:
            y = y + along_last(self.param("bias", jnp.float32), 3)
        return y.astype(x.dtype), _tail(inputs, resets, segments, lags)

    @kn.nowrap
    def tail_spec(self, rows: int, dtype: str) -> kn.ParamSpec:
        """Returns the layout of the tail."""
        cfg = self.config
        return kn.ParamSpec((rows, cfg.width - 1, cfg.channels), ("batch", None, cfg.axis), dtype, kn.zeros)

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs a tap and channel."""
        del context_length
        return float(2.0 * self.config.width * self.config.channels)


def _tail(inputs: jax.Array, resets: jax.Array | None, segments: Segments | None, lags: int) -> jax.Array:
    """Returns the last `lags` real inputs of each row, zeros where they belong to an earlier segment than the last."""
    if segments is None or resets is None:
        # Not [-lags:], which is everything where lags is 0.
        return inputs[:, inputs.shape[1] - lags :]
    count = jnp.sum(segments.real, axis=1, dtype=jnp.int32)
    # `inputs` has `lags` carried ones in front, so the last `lags` real ones begin at `count`.
    places = count[:, None] + jnp.arange(lags, dtype=jnp.int32)[None]
    same = jnp.take_along_axis(resets, places, axis=1) == resets[:, -1:]
    tail = jnp.take_along_axis(inputs, places[..., None], axis=1)
    return jnp.where(same[..., None], tail, jnp.zeros((), tail.dtype))
