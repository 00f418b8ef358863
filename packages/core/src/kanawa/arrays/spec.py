"""ParamSpec: the one description of a parameter, from which everything about it derives."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from kanawa.arrays.axes import AXES, LogicalAxes
from kanawa.arrays.init import Initializer, fan_in_normal
from kanawa.errors import ShardingError, did_you_mean


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """Shape, dtype, logical axes, initialiser and training traits of one parameter (or of one state array).

    `fan_in_axes` and `fan_out_axes` index dimensions of the unstacked shape; every other dimension counts as batch.
    `weight_decay` and `lr_scale` multiply the learner's values. `num_stacked` leading dimensions hold layers.
    `parts`, (dimension of the unstacked shape, lengths), says that several matrices lie side by side along it.
    `trainable` False excludes the parameter from gradients, updates and optimizer state, whatever the learner's config.
    """

    shape: tuple[int, ...]
    axes: LogicalAxes
    dtype: str = "float32"
    init: Initializer = fan_in_normal()
    fan_in_axes: tuple[int, ...] = (0,)
    fan_out_axes: tuple[int, ...] = (-1,)
    weight_decay: float = 1.0
    lr_scale: float = 1.0
    factored: bool = True
    memory: str = "device"
    num_stacked: int = 0
    trainable: bool = True
    parts: tuple[int, tuple[int, ...]] | None = None

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.axes):
            message = f"shape {self.shape} has {len(self.shape)} dimensions but axes {self.axes} name {len(self.axes)}"
            raise ShardingError(message)
        for axis in self.axes:
            if axis is not None and axis not in AXES:
                message = f"unknown logical axis {axis!r}{did_you_mean(axis, AXES)}"
                raise ShardingError(message)
        if self.parts is not None and sum(self.parts[1]) != self.shape[self.num_stacked :][self.parts[0]]:
            message = f"parts {self.parts[1]} don't fill dimension {self.parts[0]} of shape {self.shape}"
            raise ShardingError(message)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole, unsharded array."""
        return self.size * jnp.dtype(self.dtype).itemsize

    def fans(self) -> tuple[int, int]:
        """Returns (fan_in, fan_out) of one unstacked slice."""
        # A layer's fans don't grow with the number of layers stacked in front of it.
        shape = self.shape[self.num_stacked :]
        if not shape:
            return 1, 1
        return (
            math.prod(shape[a] for a in self.fan_in_axes),
            math.prod(shape[a] for a in self.fan_out_axes),
        )

    def draw(self, key: jax.Array) -> jax.Array:
        """Returns the initial value of one unstacked slice drawn from `key`."""
        fan_in, fan_out = self.fans()
        return self.init(key, self.shape[self.num_stacked :], jnp.dtype(self.dtype), fan_in, fan_out)

    def stacked(self, length: int) -> "ParamSpec":
        """Returns the spec of `length` such parameters in one array, with a leading `layers` axis."""
        return dataclasses.replace(
            self,
            shape=(length, *self.shape),
            axes=("layers", *self.axes),
            num_stacked=self.num_stacked + 1,
        )

    def abstract(self, sharding: jax.sharding.Sharding | None = None) -> jax.ShapeDtypeStruct:
        """Returns the array's shape and dtype for tracing, with an optional sharding."""
        return jax.ShapeDtypeStruct(self.shape, jnp.dtype(self.dtype), sharding=sharding)
