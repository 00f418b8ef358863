"""The mesh of a workload: named axes over a target's devices, fast axes inside a slice, slow ones across."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kanawa.arrays.axes import MESH_AXES
from kanawa.config import Configurable
from kanawa.errors import ShardingError, did_you_mean

if TYPE_CHECKING:
    import jax


class DeviceMesh(Configurable):
    """`axes` multiply to the devices of a slice, `dcn_axes` to the number of slices; one size of each may be -1.

    Axes come in the order of `MESH_AXES`, slowest links first; an axis in both tables spans slices and their chips.
    """

    class Config(Configurable.Config):
        axes: dict[str, int] = {}
        dcn_axes: dict[str, int] = {}

    def shape(self, num_devices: int, slices: int = 1) -> Mapping[str, int]:
        """Returns every axis with its size; -1 takes what is left. Raises ShardingError if it doesn't fit."""
        ici, dcn = self._parts(num_devices, slices)
        named = [name for name in MESH_AXES if name in ici or name in dcn]
        return {name: dcn.get(name, 1) * ici.get(name, 1) for name in named}

    def mesh(self, devices: Sequence["jax.Device"], slices: int = 1) -> "jax.sharding.Mesh":
        """Returns the mesh with Auto axes, each axis's part across slices outermost."""
        from jax.experimental.mesh_utils import create_device_mesh
        from jax.sharding import AxisType, Mesh

        shape = self.shape(len(devices), slices)
        kinds = (AxisType.Auto,) * len(shape)
        if slices == 1:
            # An axis may take part of a torus dimension: 256 of 8 x 8 x 8 chips are 4 of one and 8 of two.
            grid = create_device_mesh(tuple(shape.values()), list(devices), allow_split_physical_axes=True)
        else:
            ici, dcn = self._parts(len(devices), slices)
            grid = _hybrid(devices, [ici.get(n, 1) for n in shape], [dcn.get(n, 1) for n in shape])
        return Mesh(grid, tuple(shape), axis_types=kinds)

    def _parts(self, num_devices: int, slices: int) -> tuple[dict[str, int], dict[str, int]]:
        cfg = self.config
        if slices > 1 and not cfg.dcn_axes:
            message = (
                f"the target has {slices} slices, but execution.mesh.dcn_axes is empty; say which axis runs "
                f"between slices, for example execution.mesh.dcn_axes={{'replica': {slices}}}"
            )
            raise ShardingError(message)
        dcn = resolved_axes(cfg.dcn_axes, slices, "dcn_axes", "slices") if slices > 1 else {}
        return resolved_axes(cfg.axes, num_devices // slices, "axes", "devices"), dcn


def resolved_axes(axes: Mapping[str, int], total: int, field: str, of: str) -> dict[str, int]:
    """Returns `axes` with -1 filled in; raises ShardingError naming the config field and sizes that would fit."""
    for name in axes:
        if name not in MESH_AXES:
            message = f"execution.mesh.{field}: unknown mesh axis {name!r}{did_you_mean(name, MESH_AXES)}"
            raise ShardingError(message)
    rest = [name for name, size in axes.items() if size == -1]
    if len(rest) > 1 or any(size < 1 and size != -1 for size in axes.values()):
        message = f"execution.mesh.{field} is {dict(axes)}: sizes must be positive, and one at most may be -1"
        raise ShardingError(message)
    fixed = math.prod(size for size in axes.values() if size != -1)
    if (total % fixed) if rest else (total != fixed):
        divisors = [d for d in range(1, total + 1) if total % d == 0]
        message = (
            f"execution.mesh.{field} {dict(axes)} needs {'a multiple of ' if rest else ''}{fixed} {of}, "
            f"but there are {total}; sizes that divide: {', '.join(map(str, divisors[:16]))}"
        )
        raise ShardingError(message)
    return {name: total // fixed if size == -1 else size for name, size in axes.items()}


def _hybrid(devices: Sequence["jax.Device"], ici: Sequence[int], dcn: Sequence[int]) -> Any:
    """Returns an array of devices in which each axis's part between slices is its outer part."""
    import numpy as np

    # Devices that belong to no slice are grouped by process: links between hosts are slow.
    ordered = sorted(devices, key=lambda d: (getattr(d, "slice_index", d.process_index), d.id))
    grid = np.array(ordered, dtype=object).reshape(*dcn, *ici)
    # [dcn 0, dcn 1, …, ici 0, ici 1, …] -> [dcn 0, ici 0, dcn 1, ici 1, …], then each pair becomes one axis.
    order = [axis for i in range(len(ici)) for axis in (i, len(ici) + i)]
    return grid.transpose(order).reshape([d * i for d, i in zip(dcn, ici, strict=True)])
