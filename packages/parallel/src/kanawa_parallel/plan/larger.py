"""Plans for more devices than XLA's CPU client has: two programs for fewer, and what they say of more.

Along an axis that splits the batch a device keeps its rows and its work; only its shard of what is split along the axis
gets smaller, and a ring of n sends (n - 1) / n of an array. So every figure is a + b / n, which two sizes tell.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from kanawa.composition.experiment import Composition
from kanawa.contracts import Program
from kanawa.errors import TargetError

from kanawa_parallel.plan.show.report import ModuleRow, Report, Traffic


@dataclasses.dataclass(frozen=True)
class Smaller:
    """The axis that is cut, its size, and the two sizes to compile for, the larger first."""

    axis: str
    size: int
    sizes: tuple[int, int]


def smaller(mesh: Mapping[str, int], program: Program, most: int) -> Smaller:
    """Returns how to cut a mesh to `most` devices; raises TargetError where no axis that splits the batch can be."""
    devices = math.prod(mesh.values())
    along = [axis for axis in _row_axes(program) if mesh.get(axis, 1) > 1]
    for axis in sorted(along, key=lambda axis: -mesh[axis]):
        rest = devices // mesh[axis]
        # Divisors, so that whatever the axis divides the smaller ones divide too, and arrays are split alike. A ring of
        # one would leave its collectives out.
        fitting = [n for n in range(mesh[axis] - 1, 1, -1) if mesh[axis] % n == 0 and n * rest <= most]
        if len(fitting) > 1:
            return Smaller(axis, mesh[axis], (fitting[0], fitting[1]))
    shape = ", ".join(f"{axis} {size}" for axis, size in mesh.items())
    message = (
        f"this plan needs {devices:,} CPU devices, one for each of the target's, and XLA gives a process {most:,} at "
        f"most; a smaller mesh stands for a larger one where an axis that splits the batch "
        f"({', '.join(along) or 'none here'}) has two divisors that make it {most:,} devices or fewer, and here it is "
        f"{shape}; choose other axes with --modify mesh:axes=…, or another number of chips"
    )
    raise TargetError(message)


def with_rows(composition: Composition, rows: int) -> Composition:
    """Returns the composition with a batch of `rows`; raises TargetError where no field of its config says how many."""
    shape = composition.config.batch_shape()
    before = None if shape is None else shape.rows
    for name in composition.config.fields():
        value = getattr(composition.config, name)
        if isinstance(value, bool) or value != before:
            continue
        changed = composition.config.clone()
        setattr(changed, name, rows)
        if changed.batch_shape().rows == rows:
            return dataclasses.replace(composition, config=changed.freeze())
    message = (
        f"no field of {composition.name} says how many rows its batch has, so it can't be planned for fewer devices "
        f"first; plan a part of {composition.target.selector if composition.target else 'the target'}"
    )
    raise TargetError(message)


def joined(reports: Sequence[Report], cut: Smaller, exact: Mapping[str, int], full: Mapping[str, Any]) -> Report:
    """Returns the report of the whole mesh, from those of the two smaller ones.

    `exact` has the bytes of arguments by kind, which need no compiler; `full` the fields that belong to the whole.
    """
    first, second = reports
    one, two = cut.sizes
    weight = (1 / cut.size - 1 / one) / (1 / two - 1 / one)

    def reach(a: float, b: float) -> float:
        return max(0.0, a + (b - a) * weight)

    memory = {kind: round(reach(size, second.memory.get(kind, 0))) for kind, size in first.memory.items()}
    told = {kind: size for kind, size in exact.items() if kind in memory}
    memory["total"] += sum(size - memory[kind] for kind, size in told.items())
    memory |= told
    fits = first.fits and memory["total"] <= first.memory_limit_bytes
    parts = {part: reach(s, second.step_seconds_by.get(part, s)) for part, s in first.step_seconds_by.items()}
    flops = reach(first.flops_per_device, second.flops_per_device)
    note = (
        f"{first.note}; partitioned for {one:,} and {two:,} of {cut.size:,} along {cut.axis}, with as many rows a "
        f"device, and carried on to {cut.size:,}: shards shrink by 1/n, rings send (n-1)/n"
    )
    return dataclasses.replace(
        first,
        note=note,
        fits=fits,
        memory=memory,
        flops_per_device=flops,
        flops_per_step=flops * first.devices,
        bytes_per_device=reach(first.bytes_per_device, second.bytes_per_device),
        estimated_seconds=reach(first.estimated_seconds, second.estimated_seconds),
        unestimated_seconds=reach(first.unestimated_seconds, second.unestimated_seconds),
        step_seconds_by=parts if fits else {},
        traffic=_rows(Traffic, ("axes", "link", "kind"), first.traffic, second.traffic, reach),
        modules=_rows(ModuleRow, ("path",), first.modules, second.modules, reach),
        phases={phase: reach(s, second.phases.get(phase, s)) for phase, s in first.phases.items()},
        compile_seconds=first.compile_seconds + second.compile_seconds,
        **full,
    )


def _rows(
    kind: type[Any], keys: tuple[str, ...], first: Sequence[Any], second: Sequence[Any], reach: Callable[..., float]
) -> list[Any]:
    """Returns the records of the first, each number carried on with that of the second of the same keys."""
    others = {tuple(getattr(row, key) for key in keys): row for row in second}
    numbers = [field.name for field in dataclasses.fields(kind) if field.name not in keys]
    carried = []
    for row in first:
        other = others.get(tuple(getattr(row, key) for key in keys), row)
        values = {name: reach(getattr(row, name), getattr(other, name)) for name in numbers}
        whole = {name: round(value) for name, value in values.items() if isinstance(getattr(row, name), int)}
        carried.append(dataclasses.replace(row, **values | whole))
    return carried


def _row_axes(program: Program) -> tuple[str, ...]:
    """Returns the mesh axes that split the first dimension of what goes in beside the state."""
    for leaf in jax.tree.leaves(program.abstract_args[1:])[::-1]:
        spec = getattr(getattr(leaf, "sharding", None), "spec", ())
        if len(getattr(leaf, "shape", ())) > 1 and len(spec) and spec[0] is not None:
            return (spec[0],) if isinstance(spec[0], str) else tuple(spec[0])
    return ()
