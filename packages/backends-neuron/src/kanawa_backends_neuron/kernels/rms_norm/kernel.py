"""rms_norm.neuron.nki: RMSNorm on NeuronCores, forward and backward; unverified on hardware."""

import math
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.rms_norm.problem import RMSNormProblem
from kanawa.kernels.verdict import Verdict, first_refusal

from kanawa_backends_neuron.kernels.launch import launch, logical_cores

if TYPE_CHECKING:
    from kanawa.plugins import DeviceSpec

DTYPES = ("bfloat16", "float16", "float32")
#: The backward holds seven arrays of a tile in a partition's SBUF, five of them in fp32.
LARGEST_WIDTH = 6144
_TILE = 128
_SMALLEST_TILE = 32


class NkiRMSNorm(Kernel):
    """Unverified on hardware: tiles of up to 128 rows; statistics and product in fp32."""

    name: ClassVar[str] = "rms_norm.neuron.nki"
    operation: ClassVar[str] = "rms_norm"
    platforms: ClassVar[tuple[str, ...]] = ("neuron",)
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def supports(self, problem: RMSNormProblem, device: "DeviceSpec | None") -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        return first_refusal(
            (problem.dtype not in DTYPES, f"dtype {problem.dtype}; needs {' or '.join(DTYPES)}"),
            (problem.width > LARGEST_WIDTH, f"width {problem.width}; {LARGEST_WIDTH} at most fit in SBUF"),
            (problem.rows == 0, "no rows; the kernel needs one"),
            (
                _tile_rows(problem.rows) < min(problem.rows, _SMALLEST_TILE),
                f"{problem.rows} rows have no divisor between {_SMALLEST_TILE} and {_TILE} to cut them into tiles by",
            ),
        )

    def forward(self, problem: RMSNormProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns (x / rms(x) * scale like x, 1 / rms in fp32, a tile of rows a row)."""
        x = _tiled(operands["x"])
        outputs = (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:2], 1), jnp.float32))
        y, inverse = launch("rms_norm.forward:rms_norm_forward", outputs, (x, _row(operands)), problem.eps)
        return y.reshape(operands["x"].shape), inverse

    def backward(
        self,
        problem: RMSNormProblem,
        operands: Operands,
        out: jax.Array,
        residuals: jax.Array,
        cotangents: jax.Array,
    ) -> dict[str, jax.Array]:
        """Returns the cotangents of x and scale."""
        x = _tiled(operands["x"])
        outputs = (
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct((logical_cores(), x.shape[2]), jnp.float32),
        )
        dy = cotangents.astype(x.dtype).reshape(x.shape)
        dx, dscale = launch("rms_norm.backward:rms_norm_backward", outputs, (x, _row(operands), residuals, dy))
        # One row of each core that shares the work.
        return {"x": dx.reshape(operands["x"].shape), "scale": jnp.sum(dscale, axis=0)}


def _tiled(x: jax.Array) -> jax.Array:
    """Returns x as tiles of as many rows each: [tiles, rows a tile, E]."""
    rows = math.prod(x.shape[:-1])
    count = _tile_rows(rows)
    return x.reshape(rows // count, count, x.shape[-1])


def _tile_rows(rows: int) -> int:
    """Returns the largest divisor up to 128: a last tile of its own would be a second program."""
    return next(size for size in range(min(_TILE, max(rows, 1)), 0, -1) if rows % size == 0)


def _row(operands: Operands) -> jax.Array:
    return operands["scale"].astype(jnp.float32)[None]
