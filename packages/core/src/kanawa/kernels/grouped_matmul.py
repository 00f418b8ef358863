"""Grouped matmul: rows sorted by group, each group with a matrix of its own."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import numpy as np

from kanawa.errors import KernelError
from kanawa.kernels.bad_input import first_bad, mixed_dtypes, not_floats, not_integers, refuse_bad_input, values
from kanawa.kernels.operation import Operands, Operation, Problem, UniversalKernel, wide
from kanawa.kernels.run import run

#: Rows of one group may be on any shard, so the caller splits over the mesh (token_exchange).
GROUPED_MATMUL = Operation(
    name="grouped_matmul",
    operand_axes={"lhs": (None, None), "rhs": (None, None, None), "group_sizes": (None,)},
    output_axes=((None, None),),
    manual_axes=(),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupedMatmulProblem(Problem):
    """`rows` x `inner` times `groups` matrices `inner` x `columns`, accumulated in fp32."""

    rows: int
    inner: int
    columns: int
    groups: int
    dtype: str
    rhs_dtype: str

    @property
    def matmul_flops(self) -> float:
        """FLOPs of the matmul: every row belongs to a group."""
        return 2.0 * self.rows * self.inner * self.columns

    def describe(self) -> str:
        """Returns one line, such as "bfloat16[4096,2048] x bfloat16[8,2048,7168]"."""
        right = f"{self.rhs_dtype}[{self.groups},{self.inner},{self.columns}]"
        return f"{self.dtype}[{self.rows},{self.inner}] x {right}"

    def localize(self, operand_shapes: Mapping[str, tuple[int, ...]]) -> "GroupedMatmulProblem":
        """Returns the problem of one shard, whose operands have these shapes."""
        groups, inner, columns = operand_shapes["rhs"]
        rows = operand_shapes["lhs"][0]
        return dataclasses.replace(self, rows=rows, inner=inner, columns=columns, groups=groups)

    def result(self, operands: Operands) -> jax.ShapeDtypeStruct:
        """Returns [rows, columns] in the dtype of lhs."""
        return jax.ShapeDtypeStruct((self.rows, self.columns), operands["lhs"].dtype)


class ReferenceGroupedMatmul(UniversalKernel):
    """grouped_matmul.any.reference: XLA's ragged dot with fp32 accumulation. Supports every problem."""

    name: ClassVar[str] = "grouped_matmul.any.reference"
    operation: ClassVar[str] = "grouped_matmul"
    autodiff: ClassVar[bool] = True

    def forward(self, problem: GroupedMatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [rows, columns] like lhs, None). Rows past the last group are zero."""
        lhs, rhs, sizes = (operands[name] for name in ("lhs", "rhs", "group_sizes"))
        out = jax.lax.ragged_dot(lhs, rhs, sizes, preferred_element_type=wide(lhs.dtype))
        return out.astype(lhs.dtype), None


def grouped_matmul(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """Returns [M, N]: the rows of group g times rhs[g], in the dtype of lhs, accumulated in fp32.

    Args:
        lhs: [M, K], rows sorted by group.
        rhs: [G, K, N].
        group_sizes: int [G]: group g owns the next group_sizes[g] rows. Their sum may be less than
            M: the rows after it come out as zeros.

    Inside shard_map, every shard multiplies its own rows with its own groups. Raises KernelError
    where shapes or dtypes don't fit together, sizes at hand (outside of jit) are negative or add
    up to more than M, or no kernel applies.
    """
    fits = lhs.ndim == 2 and rhs.ndim == 3 and lhs.shape[1] == rhs.shape[1]
    if not fits or group_sizes.shape != rhs.shape[:1]:
        message = (
            f"grouped_matmul: lhs {lhs.shape}, rhs {rhs.shape}, group_sizes {group_sizes.shape}; "
            f"expected [M, K], [G, K, N] and [G]"
        )
        raise KernelError(message)
    operands = {"lhs": lhs, "rhs": rhs, "group_sizes": group_sizes}
    broken = [*not_floats(operands, ("lhs", "rhs")), *mixed_dtypes(operands, ("lhs", "rhs"))]
    broken += not_integers(operands, ("group_sizes",), "it counts rows, and counts")
    refuse_bad_input("grouped_matmul", broken or _check_sizes(lhs.shape[0], group_sizes))
    groups, inner, columns = rhs.shape
    dtypes = {"dtype": str(lhs.dtype), "rhs_dtype": str(rhs.dtype)}
    problem = GroupedMatmulProblem(rows=lhs.shape[0], inner=inner, columns=columns, groups=groups, **dtypes)
    out: jax.Array = run(GROUPED_MATMUL, problem, operands)
    return out


def _check_sizes(rows: int, group_sizes: jax.Array) -> list[str]:
    sizes = values(group_sizes)
    if sizes is None:
        return []
    broken = first_bad("group_sizes", sizes, sizes < 0, "a group has at least 0 rows")
    total = int(sizes.sum(dtype=np.int64))
    return broken + [f"group_sizes add up to {total}; lhs has {rows} rows"] * (total > rows)
