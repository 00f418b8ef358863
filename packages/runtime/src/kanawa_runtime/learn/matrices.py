"""Parameters as batches of matrices: [fan_in, fan_out] last, layers and experts in front, as their ParamSpecs say."""

import dataclasses
import math
from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float
from kanawa.arrays.spec import ParamSpec


@dataclasses.dataclass(frozen=True)
class MatrixLayout:
    """Which dimensions of an array are rows (fan in), columns (fan out) and batch (stacked layers, experts).

    `cut`, (dimension, lengths), separates matrices that are stored side by side, such as a fused projection's.
    """

    shape: tuple[int, ...]
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    cut: tuple[int, tuple[int, ...]] | None = None

    def parts(self) -> list[tuple["MatrixLayout", tuple[slice, ...]]]:
        """Returns the layout of each matrix that lies side by side with others, and where it is; one where none do."""
        if self.cut is None:
            return [(self, (slice(None),) * len(self.shape))]
        axis, lengths = self.cut
        found, start = [], 0
        for length in lengths:
            shape = (*self.shape[:axis], length, *self.shape[axis + 1 :])
            where = tuple(slice(start, start + length) if a == axis else slice(None) for a in range(len(shape)))
            found.append((dataclasses.replace(self, shape=shape, cut=None), where))
            start += length
        return found

    @property
    def fans(self) -> tuple[int, int]:
        """Rows and columns of one matrix."""
        return math.prod(self.shape[a] for a in self.rows), math.prod(self.shape[a] for a in self.columns)

    def to_matrices(self, array: Float[Array, "..."]) -> Float[Array, "N I O"]:
        """Returns the array as a batch of fan_in x fan_out matrices."""
        order = (*self.batch, *self.rows, *self.columns)
        return jnp.transpose(array, order).reshape(-1, *self.fans)

    def from_matrices(self, matrices: Float[Array, "N I O"]) -> Float[Array, "..."]:
        """Returns the batch of matrices in the array's own shape."""
        order = (*self.batch, *self.rows, *self.columns)
        array = matrices.reshape(tuple(self.shape[a] for a in order))
        return jnp.transpose(array, tuple(order.index(a) for a in range(len(order))))


def matrix_layout(spec: ParamSpec) -> MatrixLayout | None:
    """Returns the layout of a parameter; None for vectors, whose fan axes are the same or of size one."""
    rank = len(spec.shape) - spec.num_stacked
    if rank < 2:
        return None
    rows, columns = (
        tuple(spec.num_stacked + axis % rank for axis in axes) for axes in (spec.fan_in_axes, spec.fan_out_axes)
    )
    batch = tuple(a for a in range(len(spec.shape)) if a not in rows and a not in columns)
    cut = None if spec.parts is None else (spec.num_stacked + spec.parts[0] % rank, spec.parts[1])
    layout = MatrixLayout(spec.shape, batch, rows, columns, cut)
    # A column such as a gate's [embed, 1] is a vector, whatever its shape; a bias has one axis as both fans.
    return None if set(rows) & set(columns) or min(layout.fans) == 1 else layout


def hidden_matrices(specs: Mapping[str, ParamSpec]) -> dict[str, MatrixLayout]:
    """Returns the layouts of matrices from hidden to hidden: what has a `vocab` axis looks rows up, or is a head."""
    layouts = {path: matrix_layout(spec) for path, spec in specs.items() if "vocab" not in spec.axes}
    return {path: layout for path, layout in layouts.items() if layout is not None}
