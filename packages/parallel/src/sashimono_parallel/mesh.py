"""The standard mesh: named axes over a target's devices, fast axes inside a slice, slow ones across."""

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh
from sashimono.arrays.axes import MESH_AXES
from sashimono.contracts import MeshBuilder
from sashimono.errors import ShardingError, did_you_mean


class StandardMesh(MeshBuilder):
    """Axes in the order of `MESH_AXES`: slowest links first. `dcn_axes` say how slices are divided."""

    def shape(self, num_devices: int) -> Mapping[str, int]:
        """Returns every axis with its size; -1 takes what is left. Raises ShardingError if it doesn't fit."""
        cfg = self.config
        dcn = self._resolved(cfg.dcn_axes, math.prod(cfg.dcn_axes.values()), "dcn_axes") if cfg.dcn_axes else {}
        slices = math.prod(dcn.values())
        if num_devices % slices:
            message = f"dcn_axes {dict(dcn)} make {slices} slices, which don't divide {num_devices} devices"
            raise ShardingError(message)
        ici = self._resolved(cfg.axes, num_devices // slices, "axes")
        return {
            name: dcn.get(name, 1) * ici.get(name, 1)
            for name in MESH_AXES
            if name in dcn or name in ici
        }

    def mesh(self, devices: Sequence[jax.Device], slices: int = 1) -> Mesh:
        """Returns the mesh; on several slices, `dcn_axes` must multiply to their number."""
        cfg, shape = self.config, self.shape(len(devices))
        kinds = (AxisType.Auto,) * len(shape)
        dcn = [cfg.dcn_axes.get(name, 1) for name in shape]
        if math.prod(dcn) == 1:
            return jax.make_mesh(
                tuple(shape.values()), tuple(shape), devices=list(devices), axis_types=kinds
            )
        if slices not in (1, math.prod(dcn)):
            message = (
                f"dcn_axes {dict(cfg.dcn_axes)} make {math.prod(dcn)} slices, but the target has {slices}"
            )
            raise ShardingError(message)
        ici = [size // d for size, d in zip(shape.values(), dcn, strict=True)]
        return Mesh(_hybrid(devices, ici, dcn), tuple(shape), axis_types=kinds)

    @staticmethod
    def _resolved(axes: Mapping[str, int], num_devices: int, field: str) -> dict[str, int]:
        for name in axes:
            if name not in MESH_AXES:
                message = f"execution.mesh.{field}: unknown mesh axis {name!r}{did_you_mean(name, MESH_AXES)}"
                raise ShardingError(message)
        bad = {name: size for name, size in axes.items() if size < 1 and size != -1}
        rest = [name for name, size in axes.items() if size == -1]
        if bad or len(rest) > 1:
            message = (
                f"execution.mesh.{field} is {dict(axes)}: sizes must be positive, and one at most may be -1"
            )
            raise ShardingError(message)
        fixed = math.prod(size for size in axes.values() if size != -1)
        if (num_devices % fixed) if rest else (num_devices != fixed):
            divisors = [d for d in range(1, num_devices + 1) if num_devices % d == 0]
            message = (
                f"execution.mesh.{field} {dict(axes)} needs {'a multiple of ' if rest else ''}{fixed} devices, "
                f"but there are {num_devices}; sizes that divide: {divisors[:16]}"
            )
            raise ShardingError(message)
        return {name: num_devices // fixed if size == -1 else size for name, size in axes.items()}


def _hybrid(devices: Sequence[jax.Device], ici: Sequence[int], dcn: Sequence[int]) -> np.ndarray:
    """Returns devices arranged so that each axis's slow part is its outer part."""
    slices = math.prod(dcn)
    ordered = sorted(devices, key=lambda d: (getattr(d, "slice_index", d.process_index), d.id))
    grid = np.array(ordered, dtype=object).reshape(*dcn, *ici)
    rank = len(ici)
    order = [axis for i in range(rank) for axis in (i, rank + i)]
    shape = [d * i for d, i in zip(dcn, ici, strict=True)]
    if slices * math.prod(ici) != len(ordered):
        message = f"mesh {list(shape)} needs {slices * math.prod(ici)} devices, found {len(ordered)}"
        raise ShardingError(message)
    return grid.transpose(order).reshape(shape)
