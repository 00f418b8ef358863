"""rms_norm.neuron.nki: RMSNorm on NeuronCores, forward and backward; unverified on hardware."""

import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.rms_norm import RMSNormProblem
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec

from kanawa_backends_neuron.kernels.launch import launch, logical_cores

DTYPES = ("bfloat16", "float16", "float32")
#: Of a partition's SBUF, what a tile's arrays may take in the backward: four in fp32, three as x is.
ROW_BYTES = 180 * 1024
_TILE = 128
#: Rows that an iteration of the device's loop is worth.
_FEWEST_ROWS = 32
#: Elements of a row and of as many tiles as one iteration takes: iterations don't overlap, and narrow tiles are short.
_LOOP_WIDTH = 8192
_MOST_TILES = 16


class NkiRMSNorm(Kernel):
    """Unverified on hardware: tiles of up to 128 rows; statistics and product in fp32."""

    name: ClassVar[str] = "rms_norm.neuron.nki"
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def supports(self, problem: RMSNormProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        return first_refusal(
            (problem.dtype not in DTYPES, f"dtype {problem.dtype}; needs {' or '.join(DTYPES)}"),
            (
                problem.width > largest_width(problem.dtype),
                f"width {problem.width}; {largest_width(problem.dtype)} at most fit in SBUF in {problem.dtype}",
            ),
            (problem.rows == 0, "no rows; the kernel needs one"),
            (
                _loop_rows(problem.rows, problem.width) < min(problem.rows, _FEWEST_ROWS),
                f"{problem.rows} rows have no divisor between {_FEWEST_ROWS} and {_most_rows(problem.width)} to cut "
                f"them by",
            ),
        )

    def forward(self, problem: RMSNormProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns (x / rms(x) * scale like x, 1 / rms in fp32, an iteration's rows a row)."""
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


def largest_width(dtype: str) -> int:
    """Returns how many channels a row may have."""
    return ROW_BYTES // (4 * 4 + 3 * jnp.dtype(dtype).itemsize)


def _tiled(x: jax.Array) -> jax.Array:
    """Returns x as iterations of as many rows each: [loops, rows a loop, E]."""
    rows, width = math.prod(x.shape[:-1]), x.shape[-1]
    count = _loop_rows(rows, width)
    return x.reshape(rows // count, count, width)


def _most_rows(width: int) -> int:
    return _TILE * min(_MOST_TILES, max(1, _LOOP_WIDTH // width))


@functools.lru_cache(maxsize=256)
def _loop_rows(rows: int, width: int) -> int:
    """Returns the largest divisor that an iteration takes: rows left over would be a second program."""
    return next(size for size in range(min(_most_rows(width), max(rows, 1)), 0, -1) if rows % size == 0)


def _row(operands: Operands) -> jax.Array:
    scale: jax.Array = operands["scale"]
    return scale.astype(jnp.float32)[None]
