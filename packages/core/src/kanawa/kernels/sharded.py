"""Splits operands over the context mesh, for kernels that the compiler can't partition."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

from kanawa.arrays.axes import LogicalAxes
from kanawa.kernels.operation import SUMMED, Operands, Operation


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
    sizes = _free_mesh_axes()
    if not sizes:
        return Split({name: PartitionSpec() for name in operands}, shapes)
    if operation.manual_axes == ():
        mesh = ", ".join(f"{name}={size}" for name, size in sizes.items())
        error = f"it runs on one shard, but mesh axes {mesh} are left: call it inside shard_map over them"
        return Split({name: PartitionSpec() for name in operands}, shapes, error=error)
    specs, errors = {}, []
    assigned: dict[str, tuple[str, ...]] = {}
    for name, shape in shapes.items():
        parts = _resolve(operation, operand_axes[name], sizes)
        entries: list[tuple[str, ...] | None] = []
        local = list(shape)
        for index, (axis, mesh_axes) in enumerate(zip(operand_axes[name], parts, strict=True)):
            count = math.prod(sizes[m] for m in mesh_axes)
            if shape[index] == 1 or axis is None or count == 1:
                entries.append(None)
                continue
            entries.append(mesh_axes)
            local[index] = shape[index] // count
            if shape[index] % count:
                over = ", ".join(f"{m}={sizes[m]}" for m in mesh_axes)
                errors.append(f"{axis} {shape[index]} of {name} doesn't divide over {over}")
            if assigned.setdefault(axis, mesh_axes) != mesh_axes:
                errors.append(f"{axis} is split over both {assigned[axis]} and {mesh_axes}")
        specs[name], shapes[name] = PartitionSpec(*entries), tuple(local)
    used = frozenset(m for mesh_axes in assigned.values() for m in mesh_axes)
    axes = frozenset(sizes) if operation.manual_axes is None else used
    return Split(specs, shapes, assigned, axes, "; ".join(errors))


def call_split(operation: Operation, split: Split, function: Callable[[Operands], Any], operands: Operands) -> Any:
    """Returns `function(operands)` computed shard by shard, its outputs put together again."""
    if not split.axes:
        return function(operands)
    parts = (axes for axis, axes in split.assigned.items() if axis != operation.dominant)
    everywhere = tuple(dict.fromkeys(m for axes in parts for m in axes))
    single = len(operation.output_axes) == 1

    def one_shard(local: Operands) -> Any:
        out = function(local)
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
    return jax.shard_map(
        one_shard,
        in_specs=(dict(split.specs),),
        out_specs=out_specs[0] if single else out_specs,
        axis_names=set(split.axes),
        check_vma=False,
    )(dict(operands))


def _resolve(operation: Operation, axes: LogicalAxes, sizes: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Returns the mesh axes of each dimension, of those axes that the operation splits by hand."""
    from kanawa.arrays.plan import current_plan
    from kanawa.arrays.rules import resolve

    manual = operation.manual_axes
    wanted = tuple(a if manual is None or a in manual else None for a in axes)
    dominant = operation.dominant
    if dominant is not None and dominant not in wanted:
        wanted = (*wanted, dominant)
    spec = tuple(resolve(wanted, current_plan().activation_rules, sizes))[: len(axes)]
    entries = spec + (None,) * (len(axes) - len(spec))
    return [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries]


def _free_mesh_axes() -> dict[str, int]:
    """Returns the context mesh's axes that are larger than 1 and not manual already."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh is None or mesh.empty:
        return {}
    axes = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    return {n: size for n, size, kind in axes if size > 1 and kind != AxisType.Manual}
