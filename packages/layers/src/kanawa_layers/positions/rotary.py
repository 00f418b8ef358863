"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864)."""

from typing import Annotated, Any, TypeVar

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float, Int
from kanawa.arrays.broadcast import along_last
from kanawa.arrays.materialize import computed_once
from kanawa.contracts import Positions
from kanawa.errors import ConfigError

from kanawa_layers.positions.frequency_scaling import FrequencyScaling

A = TypeVar("A", jax.Array, np.ndarray)

#: Tokens of a serving step from which on cosines are better computed once than once a head.
_MANY_TOKENS = 64


class Rotary(Positions):
    """Rotates pairs of the first `fraction` of each head by angles that grow with position.

    Pairs are (i, i + d/2) as in Llama, or, `interleaved`, (2i, 2i + 1) as in GPT-J, DeepSeek and Llama 4. `sections`
    assigns so many frequencies to each of several position streams (M-RoPE: Wang et al. 2024, arXiv:2409.12191); where
    tokens have one position only, it serves for all streams. Angles and rotation are computed in fp32; results have the
    inputs' dtype.

    `trained_length` is the length of the sequences that the model was trained on with these frequencies: modifiers that
    stretch them start from it.

    `by_matmul` swaps the members of pairs by multiplying with a permutation: the same numbers, and faster on devices
    whose vector lanes are as wide as a head. Mesh rules set it.
    """

    class Config(Positions.Config):
        PLACEMENT = ("by_matmul",)
        theta: kn.Positive = 10_000.0
        fraction: Annotated[float, kn.Range(0, 1, above=True)] = 1.0
        interleaved: bool = False
        sections: tuple[kn.Count, ...] = ()
        scaling: FrequencyScaling.Config | None = None
        trained_length: kn.Size | None = None
        by_matmul: bool = False

    def setup(self) -> None:
        """Fixes the rotated width: the even number nearest below fraction * head_dim."""
        self.rotated_dim = int(self.config.head_dim * self.config.fraction) // 2 * 2
        sections = self.config.sections
        if sections and sum(sections) != self.rotated_dim // 2:
            message = f"sections {sections} sum to {sum(sections)}, but there are {self.rotated_dim // 2} frequencies"
            raise ConfigError(message)

    @kn.nowrap
    def inverse_frequencies(self) -> Float[Array, " half"]:
        """Returns the angle per position of each pair, fp32."""
        cfg, dim = self.config, self.rotated_dim
        # The rotated width is the exponent's denominator, not the head's: as in GPT-NeoX's partial rotation.
        inv_freq: jax.Array = cfg.theta ** -(jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
        if cfg.scaling is None:
            return inv_freq
        scaling: FrequencyScaling = cfg.scaling.build()
        return scaling.stretch(inv_freq, cfg.theta, dim)

    @kn.nowrap
    def trained_length(self) -> int | None:
        """Returns `trained_length`, as many times as `scaling` stretches the slowest frequency."""
        cfg, dim = self.config, self.rotated_dim
        length: int | None = cfg.trained_length
        if length is None or cfg.scaling is None or not dim:
            return length
        slowest: float = cfg.theta ** -((dim - 2) / dim)
        return round(length * max(1.0, slowest / float(self.inverse_frequencies()[-1])))

    def rotate(
        self, q: Float[Array, "B T H D"], k: Float[Array, "B T K D"], positions: Int[Array, "B T *streams"]
    ) -> tuple[Float[Array, "B T H D"], Float[Array, "B T K D"]]:
        """Returns rotated q and k; scores then depend on position differences only."""
        scaling = self.config.scaling
        factor = 1.0 if scaling is None else scaling.build().attention_factor()
        # fp32 throughout: at position 100,000 bfloat16 angles would be off by hundreds of radians.
        angles = self._of_each_frequency(positions) * along_last(self.inverse_frequencies(), 3)
        # YaRN's temperature multiplies cos and sin of both sides, so scores get its square and kernels are unchanged.
        cos, sin = (factor * wave[:, :, None, :] for wave in _waves(angles))
        return self._rotate(q, cos, sin), self._rotate(k, cos, sin)

    def _of_each_frequency(self, positions: Int[Array, "B T *streams"]) -> Float[Array, "B T half_or_1"]:
        """Returns the position that each frequency multiplies."""
        at, sections = positions.astype(jnp.float32), self.config.sections
        if at.ndim == 2:
            return at[..., None]
        if not sections:
            return at[..., :1]
        # Blocks of neighbouring frequencies, as in Qwen2-VL.
        streams = [stream for stream, size in enumerate(sections) for _ in range(size)]
        return at[..., jnp.asarray(streams)]

    def _rotate(
        self, x: Float[Array, "B T H D"], cos: Float[Array, "B T 1 half"], sin: Float[Array, "B T 1 half"]
    ) -> Float[Array, "B T H D"]:
        half, dtype = self.rotated_dim // 2, x.dtype
        rotating, rest = jnp.split(x, [2 * half], axis=-1)
        if self.config.by_matmul:
            rotated = self._rotate_by_matmul(rotating, cos, sin)
        else:
            first, second = self._pairs(rotating.astype(jnp.float32))
            rotated = self._join_pairs(first * cos - second * sin, second * cos + first * sin)
        rotated = rotated.astype(dtype)
        return jnp.concatenate([rotated, rest], axis=-1) if rest.shape[-1] else rotated

    def _rotate_by_matmul(
        self, x: Float[Array, "B T H R"], cos: Float[Array, "B T 1 half"], sin: Float[Array, "B T 1 half"]
    ) -> Float[Array, "B T H R"]:
        # The column of a pair's first member selects minus the second, that of the second the first.
        first, second = (np.asarray(part) for part in self._pairs(np.arange(self.rotated_dim)))
        swap = np.zeros((self.rotated_dim, self.rotated_dim), np.float32)
        swap[second, first], swap[first, second] = -1.0, 1.0
        return _rotated(x, self._join_pairs(cos, cos), self._join_pairs(sin, sin), jnp.asarray(swap, x.dtype))

    def _join_pairs(self, first: Float[Array, "... half"], second: Float[Array, "... half"]) -> Float[Array, "... R"]:
        if self.config.interleaved:
            return jnp.stack((first, second), axis=-1).reshape(*first.shape[:-1], self.rotated_dim)
        return jnp.concatenate((first, second), axis=-1)

    def _pairs(self, x: A) -> tuple[A, A]:
        if self.config.interleaved:
            return x[..., 0::2], x[..., 1::2]
        half = self.rotated_dim // 2
        return x[..., :half], x[..., half:]


def _waves(angles: Float[Array, "B T half"]) -> tuple[Float[Array, "B T half"], Float[Array, "B T half"]]:
    """Returns cosines and sines."""

    def both(angles: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.cos(angles), jnp.sin(angles)

    if angles.shape[0] * angles.shape[1] < _MANY_TOKENS:
        return both(angles)
    # Each head reads them: computed again for each, they take a sixth of a layer's time in prefill.
    return computed_once(both, angles, lambda angles: (angles, angles))


@jax.custom_vjp
def _rotated(
    x: Float[Array, "B T H R"], cos: Float[Array, "B T 1 R"], sin: Float[Array, "B T 1 R"], swap: Float[Array, "R R"]
) -> Float[Array, "B T H R"]:
    """Returns x * cos + (x @ swap) * sin. A row of `swap` has one entry, so the matmul is exact in any dtype."""
    # A row of `swap` has one entry, so nothing is summed; a lower precision would still round x itself.
    partner = jnp.matmul(x, swap, precision=jax.lax.Precision.HIGHEST)
    return (x.astype(jnp.float32) * cos + partner.astype(jnp.float32) * sin).astype(x.dtype)


def _rotated_forward(
    x: jax.Array, cos: jax.Array, sin: jax.Array, swap: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    return _rotated(x, cos, sin, swap), (cos, sin, swap)


def _rotated_backward(angles: tuple[jax.Array, jax.Array, jax.Array], dy: jax.Array) -> tuple[Any, ...]:
    # Rotated back by the same angle and rounded once; autodiff would round the two terms separately.
    cos, sin, swap = angles
    return _rotated(dy, cos, -sin, swap), jnp.zeros_like(cos), jnp.zeros_like(sin), jnp.zeros_like(swap)


_rotated.defvjp(_rotated_forward, _rotated_backward)
