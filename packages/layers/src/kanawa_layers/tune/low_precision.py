"""Training with matmuls of fp8, MXFP8 or NVFP4 operands, emulated exactly on any device; formats are data.

An operand is a matrix [rows, inner], contracted over `inner`. Its values are rounded to a few bits under scales that
blocks of it share, and the restored values, which fp32 holds exactly, are multiplied and summed in fp32.
"""

import dataclasses
import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from kanawa.arrays.spec import ParamSpec
from kanawa.contracts import WeightForm
from kanawa.contracts.weights import StoredWeight
from kanawa.kernels.grouped_matmul import grouped_matmul
from kanawa.kernels.matmul import matmul
from kanawa.kernels.operands import operands_as

#: A scale of zero would divide by zero.
_SMALLEST_SCALE = 1e-30


@dataclasses.dataclass(frozen=True)
class SmallFloat:
    """A float of few bits: bits of its mantissa, the exponent of its smallest normal number, its largest number.

    `dtype` is its name in hardware's figures.
    """

    mantissa: int
    smallest_exponent: int
    largest: float
    dtype: str

    def round(self, x: Float[Array, "..."], noise: Float[Array, "..."] | None = None) -> Float[Array, "..."]:
        """Returns fp32 values rounded to nearest, ties to even; larger ones become the largest.

        With `noise`, uniform in [0, 1), they are rounded up or down at random, right on average.
        """
        # A step is a power of two, so that dividing by it and multiplying are exact.
        step = _power_of_two(jnp.maximum(_exponent(x), self.smallest_exponent) - self.mantissa)
        steps = x / step
        whole = jnp.round(steps) if noise is None else jnp.floor(steps + noise)
        return jnp.clip(whole * step, -self.largest, self.largest)


def _exponent(x: jax.Array) -> jax.Array:
    """Returns floor(log2(|x|)) of normal fp32 numbers, int32; -127 of smaller ones and of 0."""
    return ((jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32) >> 23) & 255) - 127


def _power_of_two(exponent: jax.Array) -> jax.Array:
    """Returns 2 ** exponent, fp32, for exponents from -126 to 127."""
    return jax.lax.bitcast_convert_type((jnp.clip(exponent, -126, 127) + 127) << 23, jnp.float32)


E4M3 = SmallFloat(3, -6, 448.0, "float8_e4m3fn")
E5M2 = SmallFloat(2, -14, 57344.0, "float8_e5m2")
E2M1 = SmallFloat(1, 0, 6.0, "float4_e2m1fn")


@dataclasses.dataclass(frozen=True)
class BlockFormat:
    """Small floats under scales. A block is `rows` by `inner` elements of an operand; None: all of that dimension.

    Scales are fp32; "e8m0", powers of two, rounded up so that nothing is cut off; or "e4m3", under one more fp32 scale
    for the whole operand.
    """

    values: SmallFloat
    rows: int | None
    inner: int | None
    scale: Literal["float32", "e8m0", "e4m3"] = "float32"

    def rounded(self, x: Float[Array, "..."], key: jax.Array | None = None, inner_dims: int = 1) -> Float[Array, "..."]:
        """Returns what is left of x [*rows, *inner], fp32; with a key, rounded at random.

        Blocks run along the last of the `inner_dims` inner dimensions, whose size is a multiple of theirs if there are
        several.
        """
        with operands_as(self.values.dtype):
            return self._rounded(x.astype(jnp.float32), key, inner_dims)

    def _rounded(self, x: Float[Array, "..."], key: jax.Array | None, inner_dims: int) -> Float[Array, "..."]:
        blocks, axes = self._blocks(x, inner_dims)
        scale = self._scales(jnp.max(jnp.abs(blocks), axis=axes, keepdims=True))
        noise = None if key is None else jax.random.uniform(key, blocks.shape)
        restored = self.values.round(blocks / scale, noise) * scale
        if self.inner is None:
            return restored
        padded = [size + -size % block for size, block in zip(x.shape[-2:], (self.rows or 1, self.inner), strict=True)]
        return restored.reshape(*x.shape[:-2], *padded)[..., : x.shape[-2], : x.shape[-1]]

    def _blocks(self, x: Float[Array, "..."], inner_dims: int) -> tuple[Float[Array, "..."], tuple[int, ...]]:
        """Returns x cut into blocks, zeros in the last ones, and the dimensions of a block."""
        if self.inner is None:
            return x, tuple(range(0 if self.rows is None else x.ndim - inner_dims, x.ndim))
        rows, ends = self.rows or 1, [(0, 0)] * (x.ndim - 2)
        padded = jnp.pad(x, [*ends, (0, -x.shape[-2] % rows), (0, -x.shape[-1] % self.inner)])
        inside = padded.shape[-1] // self.inner, self.inner
        if rows == 1:
            # Rows stay as they lie: dimensions that are taken together are gathered where a mesh splits the second.
            return padded.reshape(*padded.shape[:-1], *inside), (-1,)
        return padded.reshape(*x.shape[:-2], padded.shape[-2] // rows, rows, *inside), (-3, -1)

    def _scales(self, largest: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns what values are divided by, of the largest magnitude of each block."""
        scale = largest / self.values.largest
        if self.scale == "e8m0":
            floor = _power_of_two(_exponent(scale))
            return jnp.where(floor < scale, 2.0 * floor, floor)
        if self.scale == "e4m3":
            whole = jnp.maximum(jnp.max(largest) / (self.values.largest * E4M3.largest), _SMALLEST_SCALE)
            scale = E4M3.round(scale / whole) * whole
        return jnp.maximum(scale, _SMALLEST_SCALE)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The formats of activations, weights and gradients in the three matmuls of a layer.

    The gradient of the weight is a matmul over tokens: both operands are rounded along them, after a rotation of each
    16 by a Hadamard matrix with random signs where `hadamard`, which spreads outliers. `stochastic` rounds gradients at
    random. `plain_last` is the share of a model's layers, the last ones, that stay as they are.
    """

    x: BlockFormat
    weight: BlockFormat
    gradient: BlockFormat
    hadamard: bool = False
    stochastic: bool = False
    plain_last: float = 0.0


def _scaled_alike(rows: int | None) -> Recipe:
    """Returns E4M3 forward and E5M2 for gradients, fp32 scales (Micikevicius et al. 2022, arXiv:2209.05433)."""
    values = BlockFormat(E4M3, rows, None)
    return Recipe(values, values, BlockFormat(E5M2, rows, None))


_BLOCK = BlockFormat(E4M3, 1, 128)
_MX = BlockFormat(E4M3, 1, 32, "e8m0")
_NV = BlockFormat(E2M1, 1, 16, "e4m3")

RECIPES = {
    "fp8-tensor": _scaled_alike(None),
    "fp8-row": _scaled_alike(1),
    # DeepSeek-V3 (arXiv:2412.19437, section 3.3.2).
    "fp8-block": Recipe(_BLOCK, BlockFormat(E4M3, 128, 128), _BLOCK),
    # OCP microscaling formats 1.0, scales as in arXiv:2506.08027, section 3.
    "mxfp8": Recipe(_MX, _MX, _MX),
    # arXiv:2509.25149, section 4.
    "nvfp4": Recipe(_NV, BlockFormat(E2M1, 16, 16, "e4m3"), _NV, hadamard=True, stochastic=True, plain_last=0.15),
}
RecipeName = Literal["fp8-tensor", "fp8-row", "fp8-block", "mxfp8", "nvfp4"]


class LowPrecision(WeightForm):
    """All three matmuls of a weight with operands in the formats of `recipe`; the weight is stored as fp32.

    Emulated: as slow as fp32 matmuls. Plans count matmuls of the recipe's dtype.
    """

    class Config(WeightForm.Config):
        recipe: RecipeName = "mxfp8"

    def matmul(self, x: Float[Array, "..."], stored: StoredWeight, spec: ParamSpec) -> Float[Array, "..."]:
        """Returns x @ weight, in x's dtype."""
        weight, count = stored[""], len(spec.fan_in_axes)
        inner, rows = math.prod(weight.shape[:count]), x.shape[: x.ndim - count]
        y = low_precision_matmul(x.reshape(*rows, inner), weight.reshape(inner, -1), RECIPES[self.config.recipe])
        return y.reshape(*rows, *weight.shape[count:])

    def grouped_matmul(
        self, x: Float[Array, "M K"], stored: StoredWeight, spec: ParamSpec, group_sizes: Int[Array, " G"]
    ) -> Float[Array, "M N"]:
        """Returns each group of rows @ its own weight, in x's dtype."""
        del spec
        return low_precision_grouped_matmul(x, stored[""], group_sizes, RECIPES[self.config.recipe])


# jax's own, not kn.custom_vjp: it takes all it needs as arguments.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def low_precision_matmul(
    x: Float[Array, "... K"], weight: Float[Array, "K N"], recipe: Recipe
) -> Float[Array, "... N"]:
    """Returns x @ weight of rounded operands, in x's dtype; gradients are those of the recipe, in each one's dtype."""
    return _multiplied(recipe.x.rounded(x), recipe.weight.rounded(weight.T), x.dtype, recipe)


def _forward(x: jax.Array, weight: jax.Array, recipe: Recipe) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return low_precision_matmul(x, weight, recipe), (x, weight)


def _backward(recipe: Recipe, saved: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weight = saved
    keys = _noise_keys(dy, recipe)
    dx = _multiplied(recipe.gradient.rounded(dy, keys[0]), recipe.weight.rounded(weight), x.dtype, recipe)
    x_tokens, dy_tokens = (_over_tokens(part, recipe) for part in (x, dy))
    count = x_tokens.ndim - 1
    by_tokens = recipe.x.rounded(x_tokens, None, count), recipe.gradient.rounded(dy_tokens, keys[1], count)
    return dx, _multiplied(*by_tokens, weight.dtype, recipe, count)


low_precision_matmul.defvjp(_forward, _backward)


def _over_tokens(x: Float[Array, "... K"], recipe: Recipe) -> Float[Array, "K ..."]:
    """Returns x with its rows last, as operand of a matmul over them, rotated where the recipe does so.

    Rows and positions are joined only where blocks would cross rows: joined, a mesh that splits both gathers them.
    """
    columns = jnp.moveaxis(x, -1, 0)
    if x.ndim > 1 and columns.shape[-1] % (recipe.x.inner or 1):
        columns = columns.reshape(columns.shape[0], -1)
    return _rotated(columns) if recipe.hadamard else columns


def _multiplied(x: jax.Array, weight: jax.Array, dtype: Any, recipe: Recipe, inner_dims: int = 1) -> jax.Array:
    """Returns x [*rows, *inner] times weight [outputs, *inner], products exact and sums in fp32."""
    how: dict[str, Any] = {"outputs_first": True, "precision": "highest", "own_gradients": False}
    with operands_as(recipe.weight.values.dtype):
        return matmul(x, weight, inner_dims, **how).astype(dtype)


def _noise_keys(dy: jax.Array, recipe: Recipe) -> tuple[jax.Array | None, jax.Array | None]:
    """Returns keys to round a gradient by twice; None where the recipe rounds to nearest."""
    if not recipe.stochastic:
        return None, None
    # Noise that follows from bits of the gradient itself needs no key, and is other in each step and layer. The sum is
    # of integers: in any order it is the same, sharded or computed again.
    bits = jax.lax.bitcast_convert_type(dy.astype(jnp.float32), jnp.uint32)
    first, second = jax.random.split(jax.random.key(jnp.sum(bits ^ bits >> 16, dtype=jnp.uint32)))
    return first, second


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def low_precision_grouped_matmul(
    x: Float[Array, "M K"], weight: Float[Array, "G K N"], group_sizes: Int[Array, " G"], recipe: Recipe
) -> Float[Array, "M N"]:
    """Returns each group of rows @ its own weight, of rounded operands, in x's dtype.

    For the weights' gradient blocks of rows are counted from the first row, whatever their group, and no rows are
    rotated: a rotation would mix groups.
    """
    outputs_first = jax.vmap(recipe.weight.rounded)(jnp.swapaxes(weight, 1, 2))
    return _grouped(recipe.x.rounded(x), jnp.swapaxes(outputs_first, 1, 2), group_sizes, x.dtype, recipe)


def _grouped_forward(
    x: jax.Array, weight: jax.Array, group_sizes: jax.Array, recipe: Recipe
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    return low_precision_grouped_matmul(x, weight, group_sizes, recipe), (x, weight, group_sizes)


def _grouped_backward(
    recipe: Recipe, saved: tuple[jax.Array, jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    x, weight, group_sizes = saved
    keys = _noise_keys(dy, recipe)
    by_outputs = jnp.swapaxes(jax.vmap(recipe.weight.rounded)(weight), 1, 2)
    dx = _grouped(recipe.gradient.rounded(dy, keys[0]), by_outputs, group_sizes, x.dtype, recipe)
    rows, gradients = recipe.x.rounded(x.T).T, recipe.gradient.rounded(dy.T, keys[1]).T
    zeros = jnp.zeros(weight.shape, jnp.float32)
    pull: Any
    _, pull = jax.vjp(lambda each: _grouped(rows, each, group_sizes, jnp.float32, recipe), zeros)
    return dx, pull(gradients)[0].astype(weight.dtype), None


low_precision_grouped_matmul.defvjp(_grouped_forward, _grouped_backward)


def _grouped(x: jax.Array, weight: jax.Array, group_sizes: jax.Array, dtype: Any, recipe: Recipe) -> jax.Array:
    with operands_as(recipe.weight.values.dtype):
        return grouped_matmul(x, weight, group_sizes).astype(dtype)


_SIXTEEN = 16


@functools.cache
def _hadamard() -> np.ndarray:
    """Returns a rotation [16, 16]: a Hadamard matrix (Sylvester) whose rows have fixed random signs, over 4."""
    matrix = np.ones((1, 1), np.float32)
    while matrix.shape[0] < _SIXTEEN:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    signs = np.array([1, -1, -1, 1, 1, 1, -1, 1, -1, 1, -1, -1, 1, -1, -1, -1], np.float32)
    return np.asarray(signs[:, None] * matrix / 4.0)


def _rotated(x: Float[Array, "... K"]) -> Float[Array, "... K16"]:
    """Returns each 16 along the last dimension rotated, fp32; zeros fill the last."""
    x = jnp.pad(x.astype(jnp.float32), [*[(0, 0)] * (x.ndim - 1), (0, -x.shape[-1] % _SIXTEEN)])
    parts = x.reshape(*x.shape[:-1], -1, _SIXTEEN)
    with operands_as(E2M1.dtype):
        return jnp.einsum("...ki,ij->...kj", parts, _hadamard(), precision=jax.lax.Precision.HIGHEST).reshape(x.shape)
