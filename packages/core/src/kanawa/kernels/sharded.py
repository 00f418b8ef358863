"""Splits operands over the context mesh, for kernels that the compiler can't partition."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
from jax.sharding import PartitionSpec

from kanawa.arrays.axes import LogicalAxes
from kanawa.arrays.constrain import auto_mesh_shape
from kanawa.arrays.plan import current_plan
from kanawa.arrays.rules import Assignment, assign, misfits, partition
from kanawa.kernels.operation import SUMMED, Operands, Operation

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Split:
    """How operands are split over mesh axes.

    Attributes:
        specs: a PartitionSpec for each operand present.
        shapes: their shapes on one shard.
        assigned: the mesh axes over which each logical axis is split, where it is.
        axes: the mesh axes that become manual; empty where there is nothing to split.
        error: why they can't be split; empty if they can.
    """

    specs: Mapping[str, PartitionSpec]
    shapes: Mapping[str, tuple[int, ...]]
    assigned: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    axes: frozenset[str] = frozenset()
    error: str = ""


def split_operands(operation: Operation, operand_axes: Mapping[str, LogicalAxes], operands: Operands) -> Split:
    """Returns how the plan's activation rules split these operands over the context mesh.

    A dimension of size 1 broadcasts and stays whole.
    """
    shapes = {name: tuple(x.shape) for name, x in operands.items()}
    sizes = {name: size for name, size in auto_mesh_shape().items() if size > 1}
    if not sizes:
        return Split({name: PartitionSpec() for name in operands}, shapes)
    # Inside a shard_map over everything `sizes` is empty, and the call has returned above.
    if operation.manual_axes == ():
        mesh = ", ".join(f"{name}={size}" for name, size in sizes.items())
        error = f"it runs on one shard, but mesh axes {mesh} are left: call it inside shard_map over them"
        return Split({name: PartitionSpec() for name in operands}, shapes, error=error)
    specs, errors = {}, []
    assigned: dict[str, tuple[str, ...]] = {}
    for name, shape in shapes.items():
        axes = operand_axes[name]
        parts = _assigned(operation, axes, shape, sizes)
        for misfit in misfits(shape, axes, parts, sizes):
            over = ", ".join(f"{m}={sizes[m]}" for m in misfit.mesh_axes)
            errors.append(f"{misfit.axis} {misfit.size} of {name} doesn't divide over {over}")
        for axis, mesh_axes in zip(axes, parts, strict=True):
            # All operands that have an axis must split it alike, or a shard would hold parts that don't belong
            # together.
            if axis is not None and mesh_axes and assigned.setdefault(axis, mesh_axes) != mesh_axes:
                errors.append(f"{axis} is split over both {assigned[axis]} and {mesh_axes}")
        counts = [math.prod(sizes[m] for m in mesh_axes) for mesh_axes in parts]
        specs[name] = partition(parts)
        shapes[name] = tuple(size // count for size, count in zip(shape, counts, strict=True))
    used = frozenset(m for mesh_axes in assigned.values() for m in mesh_axes)
    manual = frozenset(sizes) if operation.manual_axes is None else used
    return Split(specs, shapes, assigned, manual, "; ".join(errors))


def call_split(
    operation: Operation, split: Split, function: Callable[[Operands], Result], operands: Operands
) -> Result:
    """Returns `function(operands)` computed shard by shard, its outputs put together again."""
    if not split.axes:
        return function(operands)
    parts = (axes for axis, axes in split.assigned.items() if axis != operation.dominant)
    # A sum over tokens is partial on every shard of the tokens; the dominant axis' shards have added theirs up inside.
    everywhere = tuple(dict.fromkeys(m for axes in parts for m in axes))
    single = len(operation.output_axes) == 1

    def one_shard(local: Operands) -> Any:
        out: Any = function(local)
        outputs = [
            jax.lax.psum(x, everywhere) if axes == SUMMED and everywhere else x
            for x, axes in zip((out,) if single else out, operation.output_axes, strict=True)
        ]
        return outputs[0] if single else tuple(outputs)

    out_specs = tuple(
        PartitionSpec()
        if isinstance(axes, str)
        else PartitionSpec(*(split.assigned.get(a) if a is not None else None for a in axes))
        for axes in operation.output_axes
    )
    # The compiler's replication check (vma) doesn't see through custom calls.
    result: Result = jax.shard_map(
        one_shard,
        in_specs=(dict(split.specs),),
        out_specs=out_specs[0] if single else out_specs,
        axis_names=set(split.axes),
        check_vma=False,
    )(dict(operands))
    return result


def _assigned(operation: Operation, axes: LogicalAxes, shape: tuple[int, ...], sizes: Mapping[str, int]) -> Assignment:
    """Returns the mesh axes of each dimension, of those logical axes that the operation splits by hand."""
    manual = operation.manual_axes
    wanted = tuple(axis if manual is None or axis in manual else None for axis in axes)
    if operation.dominant is not None and operation.dominant not in wanted:
        wanted = (*wanted, operation.dominant)
    assignment = assign(wanted, current_plan().activation_rules, sizes)
    # A lone key head stays whole, but claims its mesh axes first: else the keys' length would take what the queries'
    # heads are split over, and a shard's queries would meet another shard's keys.
    # strict=False: the dominant axis, if it was added at the end, has no dimension here.
    return tuple(() if size == 1 else names for size, names in zip(shape, assignment, strict=False))
