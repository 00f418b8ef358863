"""How moments are stored between updates: bfloat16, or eight bits a value with a scale for each block."""

import abc
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.arrays.optimizer_state import parameter_of
from kanawa.config import Configurable, Count, Size

Flat = dict[str, jax.Array]


class StateStorage(Configurable):
    """The learner's `state_storage` slot: stores moments in fewer bits; every update is computed in float32.

    Applies to what the optimizer names in `moments`, where the array has its parameter's shape and at least `min_size`
    elements. Implement `encode` and `decode`, and `fits` where not every shape will do.
    """

    class Config(Configurable.Config):
        min_size: Count = 4096

    @abc.abstractmethod
    def encode(self, name: str, value: jax.Array, nonnegative: bool, key: jax.Array) -> Flat:
        """Returns the arrays to store for the array of this name, `name` among them, of the parameter's rank."""

    @abc.abstractmethod
    def decode(self, name: str, stored: Mapping[str, jax.Array], nonnegative: bool) -> jax.Array:
        """Returns the float32 array."""

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Returns whether arrays of this shape are stored in fewer bits."""
        smallest: int = self.config.min_size
        return math.prod(shape) >= smallest


class Bfloat16States(StateStorage):
    """Half the memory. Rounds to one of the two neighbours at random, so that on average nothing is lost.

    Rounding to the nearest would stop an average whose steps are smaller than half a unit: those of b2 = 0.999 are.
    """

    def encode(self, name: str, value: jax.Array, nonnegative: bool, key: jax.Array) -> Flat:
        """Returns the rounded array."""
        del nonnegative
        bits = jax.lax.bitcast_convert_type(value.astype(jnp.float32), jnp.uint32)
        noise = jax.random.bits(key, value.shape, jnp.uint16).astype(jnp.uint32)
        rounded = jax.lax.bitcast_convert_type((bits + noise) & jnp.uint32(0xFFFF0000), jnp.float32)
        # Noise would carry an infinity over into NaN, and the largest numbers into infinity.
        safe = jnp.where(jnp.isfinite(value) & jnp.isfinite(rounded), rounded, value)
        return {name: safe.astype(jnp.bfloat16)}

    def decode(self, name: str, stored: Mapping[str, jax.Array], nonnegative: bool) -> jax.Array:
        """Returns the array in float32."""
        del nonnegative
        return stored[name].astype(jnp.float32)


class BlockwiseStates(StateStorage):
    """A quarter of the memory: eight bits that index a table of both tiny and large numbers, scaled by block.

    Dynamic quantisation of Dettmers et al. 2021 (arXiv:2110.02861, sections 1.3 and 2): a block is at most `block_size`
    values of the last dimension. Only 0 is stored as 0, since a second moment of 0 would make an update explode.
    """

    class Config(StateStorage.Config):
        block_size: Size = 256

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Returns whether the array is large enough and its last dimension has a divisor to be a block."""
        return super().fits(shape) and self._block(shape) >= min(16, self.config.block_size)

    def encode(self, name: str, value: jax.Array, nonnegative: bool, key: jax.Array) -> Flat:
        """Returns the codes, uint8, and the blocks' scales as "TRANSFORM/FIELD-scales/PARAMETER", float32."""
        del key
        blocks = self._blocks(value.astype(jnp.float32))
        scales = jnp.max(jnp.abs(blocks), -1)
        shares = blocks / jnp.where(scales > 0, scales, 1.0)[..., None]
        table = code_table(nonnegative)
        middles = jnp.asarray((table[1:] + table[:-1]) / 2, jnp.float32)
        codes = jnp.searchsorted(middles, shares)
        zero = int(np.flatnonzero(table == 0.0)[0])
        nearest = zero + jnp.sign(shares).astype(codes.dtype)
        codes = jnp.where(codes == zero, nearest, codes).astype(jnp.uint8)
        return {name: codes.reshape(value.shape), _scales(name): scales}

    def decode(self, name: str, stored: Mapping[str, jax.Array], nonnegative: bool) -> jax.Array:
        """Returns table entries times their blocks' scales."""
        codes, table = stored[name], jnp.asarray(code_table(nonnegative), jnp.float32)
        blocks = self._blocks(jnp.take(table, codes.astype(jnp.int32)))
        return (blocks * stored[_scales(name)][..., None]).reshape(codes.shape)

    def _block(self, shape: tuple[int, ...]) -> int:
        """Returns the largest block size that divides the last dimension."""
        last = shape[-1] if shape else 1
        return max(size for size in range(1, min(last, self.config.block_size) + 1) if last % size == 0)

    def _blocks(self, array: jax.Array) -> jax.Array:
        block = self._block(array.shape)
        return array.reshape(*array.shape[:-1], array.shape[-1] // block, block)


def code_table(nonnegative: bool) -> np.ndarray:
    """Returns the 256 numbers of the dynamic data type, ascending, in [-1, 1] or [0, 1] (arXiv:2110.02861, 1.3).

    Each power of ten has twice the numbers of the one below, evenly spaced: precision goes where a block's large values
    are, and seven powers of ten are there at all.
    """
    numbers = [0.0, 1.0]
    decades = 7
    for decade in range(decades):
        count = 2 ** (decade + 1 if nonnegative else decade)
        edges = np.linspace(0.1, 1.0, count + 1)
        middles = (edges[1:] + edges[:-1]) / 2 * 10.0 ** (decade - decades + 1)
        numbers += [*middles] if nonnegative else [*middles, *-middles]
    return np.sort(np.asarray(numbers))


def _scales(name: str) -> str:
    head, _, parameter = name.rpartition("/")
    return f"{head}-scales/{parameter}"


class Storing:
    """Encodes and decodes the flat state of an optimizer by what its `moments` say."""

    def __init__(
        self, storage: StateStorage, moments: Mapping[str, bool], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._storage = storage
        self._moments = moments
        self._shapes = shapes

    def encode(self, flat: Mapping[str, Any], count: jax.Array) -> Flat:
        """Returns what to store after update number `count`, which draws the roundings."""
        key = jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), count)
        result: Flat = {}
        for number, (name, value) in enumerate(flat.items()):
            if self._takes(name, value.shape):
                own = jax.random.fold_in(key, number)
                result |= self._storage.encode(name, value, self._moments[_field(name)], own)
            else:
                result[name] = value
        return result

    def decode(self, stored: Mapping[str, jax.Array], like: Mapping[str, Any]) -> Flat:
        """Returns the optimizer's own flat state; `like` has its names and dtypes."""
        result: Flat = {}
        for name, leaf in like.items():
            if self._takes(name, leaf.shape):
                result[name] = self._storage.decode(name, stored, self._moments[_field(name)]).astype(leaf.dtype)
            else:
                result[name] = stored[name]
        return result

    def _takes(self, name: str, shape: tuple[int, ...]) -> bool:
        whole = self._shapes.get(parameter_of(name)) == shape
        return whole and _field(name) in self._moments and self._storage.fits(shape)


def _field(name: str) -> str:
    return name.rpartition("/")[0]
