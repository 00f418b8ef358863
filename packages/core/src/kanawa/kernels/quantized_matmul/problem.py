"""QuantizedMatmulProblem: all that is static about one call, and the operation's axes."""

import dataclasses
import math
from collections.abc import Mapping

from kanawa.kernels.operation import Operation

#: Operands have any dimensions, so the compiler splits the matmul over the mesh; a kernel that it can't split has to be
#: called inside shard_map.
QUANTIZED_MATMUL = Operation(
    name="quantized_matmul",
    operand_axes={"lhs": (), "rhs": (), "lhs_scale": (), "rhs_scale": ()},
    output_axes=((),),
    manual_axes=(),
    matmul_flops=lambda problem: problem.matmul_flops,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizedMatmulProblem:
    """lhs [*rows, *contracted] times rhs [*contracted, *columns].

    Attributes:
        lhs_shape, rhs_shape: shapes of the values, unpacked.
        num_contracted: how many dimensions are contracted.
        groups: scales along the first contracted dimension of rhs.
        lhs_format: a dtype's name where lhs isn't quantised, else a format's.
        rhs_format: the format of rhs.
        dtype: of the output.
    """

    lhs_shape: tuple[int, ...]
    rhs_shape: tuple[int, ...]
    num_contracted: int
    groups: int
    lhs_format: str
    rhs_format: str
    dtype: str

    @property
    def matmul_flops(self) -> float:
        """FLOPs of the matmul."""
        rows = self.lhs_shape[: len(self.lhs_shape) - self.num_contracted]
        return 2.0 * math.prod(rows) * math.prod(self.rhs_shape)

    def describe(self) -> str:
        """Returns one line, such as "int8[8,4096,2048] x int8[2048,7168] -> bfloat16"."""
        left = ",".join(map(str, self.lhs_shape))
        right = ",".join(map(str, self.rhs_shape))
        over = f" over {self.num_contracted} dimensions" if self.num_contracted > 1 else ""
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        return f"{self.lhs_format}[{left}] x {self.rhs_format}[{right}]{over}{groups} -> {self.dtype}"

    def localize(self, operand_shapes: Mapping[str, tuple[int, ...]]) -> "QuantizedMatmulProblem":
        """Returns itself: operands are never split by the wrapper."""
        del operand_shapes
        return self
