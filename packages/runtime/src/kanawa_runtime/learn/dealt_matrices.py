"""Matrices that are stored in shards, each worked on by one device: dealt out whole, and sent back in shards.

Matrices of one form (a shard's rows and columns, and the mesh axes that split them) are a group. The devices over which
its matrices are split all hold a shard of each; one all-to-all an axis gives each device whole matrices, as many as any
other, and a second one takes the results back. Replicas, whose shards are equal, share the work too.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from kanawa.arrays.constrain import auto_mesh_shape
from kanawa.arrays.plan import current_plan
from kanawa.arrays.rules import Assignment, assign_param, partition
from kanawa.arrays.spec import ParamSpec

from kanawa_runtime.learn.matrices import MatrixLayout

#: From normalised matrices to results of their shape and dtype. Rows or columns in another order, or a transposed
#: matrix, must give the same result in that order, or transposed.
Work = Callable[[Float[Array, "N I O"]], Float[Array, "N I O"]]


class Batch(NamedTuple):
    """Matrices of one array, where their layout says they are; `assigned` are the mesh axes of its dimensions."""

    array: jax.Array
    layout: MatrixLayout
    assigned: Assignment

    def axes(self, dimensions: Sequence[int]) -> tuple[str, ...]:
        """Returns the mesh axes that split these dimensions."""
        return tuple(name for dimension in dimensions for name in self.assigned[dimension])


@dataclasses.dataclass(frozen=True, order=True)
class _Form:
    """What matrices of one group have in common: rows and columns are those of a shard."""

    row_axes: tuple[str, ...]
    column_axes: tuple[str, ...]
    rows: int
    columns: int
    batch_axes: tuple[str, ...]

    @property
    def turned(self) -> "_Form":
        """The transposed matrices' form."""
        return _Form(self.column_axes, self.row_axes, self.columns, self.rows, self.batch_axes)


def shards_of(spec: ParamSpec, layout: MatrixLayout, array: jax.Array) -> Batch:
    """Returns the matrices of a parameter, or of a part that `layout` cuts out of it, with the plan's mesh axes."""
    sizes = auto_mesh_shape()
    stored = assign_param(spec.shape, spec.axes, current_plan().param_rules, sizes)
    # A part may be too small for the axes that split the whole: then it is gathered.
    fits = (size % math.prod(sizes[n] for n in names) == 0 for names, size in zip(stored, layout.shape, strict=True))
    return Batch(array, layout, tuple(names if fit else () for names, fit in zip(stored, fits, strict=True)))


def on_owners(batches: Mapping[str, Batch], dtype: str, work: Work) -> dict[str, jax.Array]:
    """Returns `work` of all matrices, divided by their Frobenius norms and in `dtype`; arrays of the old dtypes."""
    sizes = {name: size for name, size in auto_mesh_shape().items() if size > 1}
    if not sizes:
        each = {name: work(normalised(b.layout.to_matrices(b.array), dtype)) for name, b in batches.items()}
        return {name: b.layout.from_matrices(each[name].astype(b.array.dtype)) for name, b in batches.items()}
    specs = {name: partition(batch.assigned) for name, batch in batches.items()}

    def one_shard(local: dict[str, jax.Array]) -> dict[str, jax.Array]:
        groups: dict[_Form, list[tuple[str, MatrixLayout, bool]]] = {}
        for name, batch in batches.items():
            layout = dataclasses.replace(batch.layout, shape=local[name].shape)
            form = _Form(batch.axes(layout.rows), batch.axes(layout.columns), *layout.fans, batch.axes(layout.batch))
            turned = form.turned > form
            groups.setdefault(form.turned if turned else form, []).append((name, layout, turned))
        results = {}
        for form, members in groups.items():
            matrices = [_turned(layout.to_matrices(local[name]), turned) for name, layout, turned in members]
            done = _of_group(form, jnp.concatenate(matrices), dtype, work, sizes)
            ends = itertools.accumulate(len(each) for each in matrices)
            for (name, layout, turned), end, each in zip(members, ends, matrices, strict=True):
                mine = _turned(done[end - len(each) : end], turned)
                results[name] = layout.from_matrices(mine.astype(local[name].dtype))
        return results

    mapped: Callable[..., dict[str, jax.Array]] = jax.shard_map(
        one_shard, in_specs=(specs,), out_specs=specs, axis_names=set(sizes), check_vma=False
    )
    return mapped({name: batch.array for name, batch in batches.items()})


def normalised(matrices: Float[Array, "N I O"], dtype: str, axes: tuple[str, ...] = ()) -> Float[Array, "N I O"]:
    """Returns each matrix divided by its Frobenius norm, which is summed in fp32 over the shards along `axes`."""
    exact = matrices.astype(jnp.float32)
    norm = jnp.linalg.norm(exact, axis=(-2, -1), keepdims=True)
    if axes:
        norm = jnp.sqrt(jax.lax.psum(jnp.square(norm), axes))
    return (exact / jnp.maximum(norm, 1e-7)).astype(dtype)


def _turned(matrices: Float[Array, "N I O"], turned: bool) -> Float[Array, "N J K"]:
    return matrices.swapaxes(-1, -2) if turned else matrices


def _of_group(form: _Form, matrices: jax.Array, dtype: str, work: Work, sizes: Mapping[str, int]) -> jax.Array:
    """Returns the results of one group's matrices, as this shard holds them."""
    # The norm first: what travels is in the narrow dtype, and is what one device alone would compute with.
    x = normalised(matrices, dtype, (*form.row_axes, *form.column_axes))
    moves = [(name, 1) for name in reversed(form.row_axes)] + [(name, 2) for name in reversed(form.column_axes)]
    owners = math.prod(sizes[name] for name, _ in moves)
    replicas: tuple[str, ...] = ()
    for name, size in sizes.items():
        if name in (*form.row_axes, *form.column_axes, *form.batch_axes):
            continue
        # Only where it lessens the work of each: their results have to be gathered.
        if -(-len(x) // (owners * size)) < -(-len(x) // owners):
            replicas, owners = (*replicas, name), owners * size
    x = jnp.pad(x, ((0, -len(x) % owners), (0, 0), (0, 0)))
    if replicas:
        share = len(x) // math.prod(sizes[name] for name in replicas)
        x = jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(replicas) * share, share)
    for name, dimension in moves:
        x = jax.lax.all_to_all(x, name, 0, dimension, tiled=True)
    x = work(x)
    for name, dimension in reversed(moves):
        x = jax.lax.all_to_all(x, name, dimension, 0, tiled=True)
    if replicas:
        x = jax.lax.all_gather(x, replicas, tiled=True)
    return x[: len(matrices)]
