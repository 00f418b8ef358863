"""RMSNormProblem: all that is static about one call, and the operation's axes."""

import dataclasses
import math
from collections.abc import Mapping

from kanawa.arrays.axes import LogicalAxes
from kanawa.kernels.operation import Operation

_ROWS: tuple[LogicalAxes, ...] = (("batch",), ("batch", "length"), ("batch", "length", "heads"))


def _operation(rows: LogicalAxes) -> Operation:
    # Channels stay whole: their mean is over all of them. Compilers fuse it well, so that a kernel is no must anywhere.
    return Operation(
        name="rms_norm",
        operand_axes={"x": (*rows, None), "scale": (None,)},
        output_axes=((*rows, None),),
        expects_fused=False,
    )


#: The operation by the number of dimensions of x, whose first ones are rows.
RMS_NORM: Mapping[int, Operation] = {len(rows) + 1: _operation(rows) for rows in _ROWS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMSNormProblem:
    """`rows` of `width` channels each, in `dtype`; statistics and product are fp32, the scale too."""

    rows: int
    width: int
    dtype: str
    eps: float

    def describe(self) -> str:
        """Returns one line, such as "bfloat16[8192,4096] eps=1e-06"."""
        return f"{self.dtype}[{self.rows},{self.width}] eps={self.eps:g}"

    def localize(self, operand_shapes: Mapping[str, tuple[int, ...]]) -> "RMSNormProblem":
        """Returns the problem of one shard, whose operands have these shapes."""
        return dataclasses.replace(self, rows=math.prod(operand_shapes["x"][:-1]))
