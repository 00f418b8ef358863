"""From logical axes to mesh axes: ordered rules, each mesh axis used once per array."""

import functools
from collections.abc import Mapping

from jax.sharding import PartitionSpec

from kanawa.arrays.axes import LogicalAxes
from kanawa.errors import ShardingError

#: Ordered (logical axis, mesh axes) pairs. A logical axis may appear again later as a second choice.
Rules = tuple[tuple[str, tuple[str, ...]], ...]


def resolve(axes: LogicalAxes, rules: Rules, mesh_shape: Mapping[str, int]) -> PartitionSpec:
    """Returns the PartitionSpec of an array with these logical axes.

    Rules apply in order. A rule claims those of its mesh axes that exist in the mesh with size over 1 and that no
    earlier rule has claimed for this array; a logical axis keeps the first rule that gives it any.
    """
    return _resolve(axes, rules, tuple(sorted(mesh_shape.items())))


@functools.lru_cache(maxsize=4096)
def _resolve(axes: LogicalAxes, rules: Rules, mesh_items: tuple[tuple[str, int], ...]) -> PartitionSpec:
    sizes = dict(mesh_items)
    used: set[str] = set()
    assigned: list[tuple[str, ...]] = [()] * len(axes)
    for logical, mesh_axes in rules:
        for index, axis in enumerate(axes):
            if axis != logical or assigned[index]:
                continue
            free = tuple(m for m in mesh_axes if sizes.get(m, 1) > 1 and m not in used)
            used.update(free)
            assigned[index] = free
            break
    entries = [None if not a else a[0] if len(a) == 1 else a for a in assigned]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def split_axes(shape: tuple[int, ...], axes: LogicalAxes) -> LogicalAxes:
    """Returns `axes` without those of size 1, which broadcast and stay whole: one decoded token, a lone key head."""
    return tuple(None if size == 1 else axis for size, axis in zip(shape, axes, strict=True))


def check_divides(
    shape: tuple[int, ...], axes: LogicalAxes, spec: PartitionSpec, mesh_shape: Mapping[str, int], what: str
) -> None:
    """Raises ShardingError naming array, axis and sizes where a dimension isn't a multiple of its mesh axes."""
    for size, axis, entry in zip(shape, axes, tuple(spec), strict=False):
        names = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        parts = 1
        for name in names:
            parts *= mesh_shape[name]
        if size % parts:
            message = (
                f"{what}: axis {axis!r} has size {size}, which is not a multiple of {parts} "
                f"(mesh axes {', '.join(f'{n}={mesh_shape[n]}' for n in names)}); "
                f"change the mesh, or the size to a multiple of {parts}"
            )
            raise ShardingError(message)
