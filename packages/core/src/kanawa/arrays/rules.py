"""From logical axes to mesh axes: ordered rules, each mesh axis used once per array."""

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

from jax.sharding import PartitionSpec

from kanawa.arrays.axes import STORAGE_AXES, LogicalAxes
from kanawa.errors import ShardingError

#: Ordered (logical axis, mesh axes) pairs. A logical axis may appear again later as a second choice.
Rules = tuple[tuple[str, tuple[str, ...]], ...]


#: Parameters of at most so many elements may stay whole where no axis of theirs divides: biases and scales.
SMALL_PARAMETER = 1 << 20
#: The mesh axes of each dimension of an array; empty where the dimension stays whole.
Assignment = tuple[tuple[str, ...], ...]


def assign(axes: LogicalAxes, rules: Rules, mesh_shape: Mapping[str, int]) -> Assignment:
    """Returns the mesh axes that split each dimension of an array with these logical axes.

    Rules apply in order. A rule claims those of its mesh axes that exist in the mesh with size over 1 and that no
    earlier rule has claimed for this array; the first rule that finds any wins for a logical axis.
    """
    # Sorted to be one key of the cache; the order of mesh axes in the mesh decides nothing here.
    return _assign(axes, rules, tuple(sorted(mesh_shape.items())))


def assign_param(shape: tuple[int, ...], axes: LogicalAxes, rules: Rules, mesh_shape: Mapping[str, int]) -> Assignment:
    """Returns the mesh axes that split each dimension of a parameter.

    As `assign`, but a rule leaves STORAGE_AXES out if they don't divide its axis: the parameter is gathered before
    use, so another dimension can be split instead. Where no rule's axis divides, a small parameter stays whole, and a
    large one is split on its longest dimension that divides, whatever it counts, on top of what splits it already.
    Without such a dimension it gets the result of `assign`, which `check_divides` refuses.
    """
    axes, mesh_items = split_axes(shape, axes), tuple(sorted(mesh_shape.items()))
    fitting = _assign(axes, rules, mesh_items, shape)
    if math.prod(shape) <= SMALL_PARAMETER:
        return fitting
    preferred = _assign(axes, rules, mesh_items)
    # The same mesh axes, maybe on other dimensions, store it in as many parts. Fewer would silently hold a large array
    # more often than was asked for.
    wanted, claimed = ({name for names in assigned for name in names} for assigned in (preferred, fitting))
    return _stored_anywhere(shape, axes, fitting, sorted(wanted - claimed), mesh_shape) or preferred


def _stored_anywhere(
    shape: tuple[int, ...], axes: LogicalAxes, assigned: Assignment, missing: list[str], mesh_shape: Mapping[str, int]
) -> Assignment | None:
    """Returns the assignment with `missing` STORAGE_AXES on any dimensions that they divide; None if there is none."""
    for name in missing:
        parts = [math.prod(mesh_shape[each] for each in (*names, name)) for names in assigned]
        # A loop takes layer by layer: each would be on one shard.
        fitting = [at for at, axis in enumerate(axes) if axis != "layers" and shape[at] % parts[at] == 0]
        if name not in STORAGE_AXES or not fitting:
            return None
        longest = max(fitting, key=lambda at: shape[at] // parts[at])
        assigned = tuple((*names, name) if at == longest else names for at, names in enumerate(assigned))
    return assigned


def resolve(axes: LogicalAxes, rules: Rules, mesh_shape: Mapping[str, int]) -> PartitionSpec:
    """Returns the PartitionSpec of an array with these logical axes; see `assign`."""
    return partition(assign(axes, rules, mesh_shape))


def partition(assignment: Assignment) -> PartitionSpec:
    """Returns an assignment as JAX writes it, without whole dimensions at the end."""
    entries = [None if not names else names[0] if len(names) == 1 else names for names in assignment]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


@functools.lru_cache(maxsize=4096)
def _assign(
    axes: LogicalAxes, rules: Rules, mesh_items: tuple[tuple[str, int], ...], shape: tuple[int, ...] | None = None
) -> Assignment:
    """Returns the assignment; with a shape, without rules for storage that don't divide it."""
    sizes = dict(mesh_items)
    used: set[str] = set()
    assigned: list[tuple[str, ...]] = [()] * len(axes)
    for logical, mesh_axes in rules:
        for index, axis in enumerate(axes):
            if axis != logical or assigned[index]:
                continue
            # One array can't be split twice along a mesh axis; a later rule uses the remaining ones.
            free = tuple(m for m in mesh_axes if sizes.get(m, 1) > 1 and m not in used)
            if shape is not None and shape[index] % math.prod(sizes[m] for m in free):
                free = tuple(m for m in free if m not in STORAGE_AXES)
                if not free:
                    break
            used.update(free)
            assigned[index] = free
            break
    return tuple(assigned)


def split_axes(shape: tuple[int, ...], axes: LogicalAxes) -> LogicalAxes:
    """Returns `axes` without those of size 1, which broadcast and stay whole: one decoded token, a lone key head."""
    return tuple(None if size == 1 else axis for size, axis in zip(shape, axes, strict=True))


class Misfit(NamedTuple):
    """A dimension that its mesh axes don't divide: its index, logical axis, size, and into how many parts."""

    position: int
    axis: str | None
    size: int
    mesh_axes: tuple[str, ...]
    parts: int


def misfits(
    shape: tuple[int, ...], axes: LogicalAxes, assignment: Assignment, mesh_shape: Mapping[str, int]
) -> list[Misfit]:
    """Returns the dimensions that aren't multiples of their mesh axes; empty if the array divides."""
    sized = [(names, math.prod(mesh_shape[name] for name in names)) for names in assignment]
    rows = enumerate(zip(axes, shape, sized, strict=False))
    return [Misfit(i, axis, size, names, parts) for i, (axis, size, (names, parts)) in rows if size % parts]


def check_divides(
    shape: tuple[int, ...], axes: LogicalAxes, assignment: Assignment, mesh_shape: Mapping[str, int], what: str
) -> None:
    """Raises ShardingError naming array, axis and sizes where a dimension isn't a multiple of its mesh axes."""
    for _, axis, size, names, parts in misfits(shape, axes, assignment, mesh_shape):
        message = (
            f"{what}: axis {axis!r} has size {size}, which is not a multiple of {parts} "
            f"(mesh axes {', '.join(f'{n}={mesh_shape[n]}' for n in names)}); "
            f"change the mesh, or the size to a multiple of {parts}"
        )
        raise ShardingError(message)
