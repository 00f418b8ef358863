"""GroupedMatmulProblem: all that is static about one call, and the operation's axes."""

import dataclasses
from collections.abc import Mapping

from kanawa.kernels.operation import Operation

#: Rows of one group may be on any shard, so the caller splits over the mesh (token_exchange).
GROUPED_MATMUL = Operation(
    name="grouped_matmul",
    operand_axes={"lhs": (None, None), "rhs": (None, None, None), "group_sizes": (None,)},
    output_axes=((None, None),),
    manual_axes=(),
    matmul_flops=lambda problem: problem.matmul_flops,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupedMatmulProblem:
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
