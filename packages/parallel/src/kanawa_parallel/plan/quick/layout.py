"""How an array lies on a mesh: which axes split each dimension, and over which its parts are yet to be summed."""

import dataclasses
import math
from collections.abc import Iterable, Mapping

from kanawa_parallel.plan.quick.equations import Value

Dims = tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Mesh axes of each dimension; `partial` axes hold terms of a sum. `free`: a constant, cut as its user wants."""

    dims: Dims
    partial: frozenset[str] = frozenset()
    free: bool = False

    @property
    def axes(self) -> frozenset[str]:
        """All axes that split it."""
        return frozenset(axis for names in self.dims for axis in names)

    def place(self, axis: str) -> int | None:
        """Returns the dimension that `axis` splits; None if it splits none."""
        return next((at for at, names in enumerate(self.dims) if axis in names), None)


@dataclasses.dataclass(frozen=True)
class Move:
    """A collective that a change of layout needs: its kind, its mesh axes, and the bytes of a device's operand."""

    kind: str
    axes: tuple[str, ...]
    bytes: float


def replicated(value: Value, free: bool = False) -> Layout:
    """Returns the layout of an array that every device holds whole."""
    return Layout(((),) * len(value.shape), free=free)


def layout_of_spec(
    value: Value, spec: Iterable[object], unconstrained: Mapping[int, tuple[str, ...]] | None = None
) -> Layout:
    """Returns the layout of a PartitionSpec; `unconstrained` are the axes of dimensions that the spec leaves open."""
    dims: list[tuple[str, ...]] = []
    for names in spec:
        if names is None or isinstance(names, str):
            dims.append(() if names is None else (names,))
        else:
            dims.append(tuple(str(name) for name in names) if isinstance(names, tuple) else ())
    dims += [()] * (len(value.shape) - len(dims))
    for at, names in (unconstrained or {}).items():
        dims[at] = names
    return Layout(tuple(dims))


def count_parts(axes: Iterable[str], mesh: Mapping[str, int]) -> int:
    """Returns how many devices stand along these axes."""
    return math.prod(mesh.get(axis, 1) for axis in axes)


def local_bytes(value: Value, layout: Layout, mesh: Mapping[str, int]) -> float:
    """Returns the bytes that one device holds; a dimension that doesn't divide is padded up."""
    return math.prod(local_shape(value, layout, mesh)) * value.bits / 8


def local_shape(value: Value, layout: Layout, mesh: Mapping[str, int]) -> tuple[int, ...]:
    """Returns a device's own shape."""
    return tuple(-(-size // count_parts(names, mesh)) for size, names in zip(value.shape, layout.dims, strict=True))


def moves_between(value: Value, before: Layout, after: Layout, mesh: Mapping[str, int]) -> list[Move]:
    """Returns the collectives from one layout to another: what must be summed first, then what must be gathered."""
    if before.free:
        return []
    needed: list[Move] = []
    summed = before.partial - after.partial
    scattered = tuple(axis for axis in summed if after.place(axis) is not None)
    dims = before.dims
    if scattered:
        needed.append(Move("reduce-scatter", _sorted(scattered, mesh), local_bytes(value, before, mesh)))
        dims = tuple(
            (*names, *(axis for axis in after.dims[at] if axis in scattered and axis not in names))
            for at, names in enumerate(dims)
        )
    alike = tuple(axis for axis in summed if axis not in scattered)
    if alike:
        needed.append(Move("all-reduce", _sorted(alike, mesh), local_bytes(value, Layout(dims), mesh)))
    moved: list[str] = []
    gathered: list[str] = []
    for at, names in enumerate(dims):
        for axis in names:
            if axis not in after.dims[at]:
                (moved if after.place(axis) is not None else gathered).append(axis)
    here = local_bytes(value, Layout(dims), mesh)
    if moved:
        needed.append(Move("all-to-all", _sorted(moved, mesh), here))
    if gathered:
        # What is cut anew is cut before it is sent.
        new = {axis for names in after.dims for axis in names} - {axis for names in dims for axis in names}
        needed.append(Move("all-gather", _sorted(gathered, mesh), here / count_parts(new, mesh)))
    return [move for move in needed if count_parts(move.axes, mesh) > 1]


def _sorted(axes: Iterable[str], mesh: Mapping[str, int]) -> tuple[str, ...]:
    order = list(mesh)
    return tuple(sorted(axes, key=lambda axis: order.index(axis) if axis in order else len(order)))
