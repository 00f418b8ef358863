"""grouped_matmul.neuron.nki: grouped products on NeuronCores, forward and backward; unverified on hardware."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.grouped_matmul import GroupedMatmulProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec

from kanawa_backends_neuron.kernels.grouped_matmul.blocks import blocks_of
from kanawa_backends_neuron.kernels.launch import launch

DTYPES = ("bfloat16", "float16", "float32")
_TILE = 128
#: Rows of a block at most: a tile of the matrix is loaded once a block, and four tiles of sums are half of PSUM.
_LARGEST = 512
#: Of a partition's SBUF, what a block's rows may take, transposed, and one tile of them as it lies.
_BLOCK_BYTES = 96 * 1024


class NkiGroupedMatmul(Kernel):
    """Unverified on hardware: blocks of 128 to 512 rows of one group each, gathered and scattered by DMA."""

    name: ClassVar[str] = "grouped_matmul.neuron.nki"
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = (("grouped_rows", 1), ("grouped_weights", 1))

    def supports(self, problem: GroupedMatmulProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        widest = max(problem.inner, problem.columns)
        taken = _bytes(problem, widest, _TILE)
        return first_refusal(
            (problem.dtype not in DTYPES, f"dtype {problem.dtype}; needs {' or '.join(DTYPES)}"),
            (problem.rhs_dtype != problem.dtype, f"dtypes {problem.dtype} and {problem.rhs_dtype} differ"),
            (
                taken > _BLOCK_BYTES,
                f"128 rows of {widest} elements take {taken // 1024} KiB of a partition's SBUF; "
                f"{_BLOCK_BYTES // 1024} at most",
            ),
        )

    def forward(self, problem: GroupedMatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [rows, columns] like lhs, None). Rows past the last group are zero."""
        return _product(problem, operands["lhs"], operands["rhs"], operands["group_sizes"]), None

    def backward(
        self, problem: GroupedMatmulProblem, operands: Operands, out: jax.Array, residuals: None, cotangents: jax.Array
    ) -> dict[str, jax.Array]:
        """Returns the cotangents of lhs and rhs."""
        lhs, rhs, sizes = operands["lhs"], operands["rhs"], operands["group_sizes"]
        dout = cotangents.astype(lhs.dtype)
        blocks = blocks_of(sizes, problem.rows, _TILE)
        (drhs,) = launch(
            "grouped_matmul.weights:grouped_weights",
            (jax.ShapeDtypeStruct(rhs.shape, rhs.dtype),),
            (lhs, dout, rhs, blocks.reads.astype(jnp.uint32), blocks.limits),
        )
        # Contracted over columns, which must then lie on partitions: turning the matrices is cheaper than each tile.
        return {"lhs": _product(problem, dout, rhs.swapaxes(1, 2), sizes), "rhs": drhs}


def _product(problem: GroupedMatmulProblem, lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
    blocks = blocks_of(sizes, problem.rows, _block(problem, lhs.shape[1]))
    (out,) = launch(
        "grouped_matmul.rows:grouped_rows",
        (jax.ShapeDtypeStruct((lhs.shape[0], rhs.shape[2]), lhs.dtype),),
        (lhs, rhs, blocks.reads.astype(jnp.uint32), blocks.writes.astype(jnp.uint32), blocks.groups),
    )
    return out


def _block(problem: GroupedMatmulProblem, inner: int) -> int:
    """Returns the rows of a block: as many as a group has on average, and as fit."""
    wanted = math.ceil(problem.rows / problem.groups / _TILE) * _TILE
    sizes = range(min(_LARGEST, max(_TILE, wanted)), _TILE, -_TILE)
    return next((size for size in sizes if _bytes(problem, inner, size) <= _BLOCK_BYTES), _TILE)


def _bytes(problem: GroupedMatmulProblem, inner: int, size: int) -> int:
    """Returns what a block's rows take of a partition, transposed, and a tile of 128 of them as it lies."""
    element = jnp.dtype(problem.dtype).itemsize
    return element * (math.ceil(inner / _TILE) * size + inner)
