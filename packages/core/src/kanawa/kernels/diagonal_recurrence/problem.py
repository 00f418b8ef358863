"""DiagonalRecurrenceProblem: all that is static about one call, and the operation's axes."""

import dataclasses
from collections.abc import Mapping

from kanawa.kernels.operation import Operation

#: Channels don't meet, so they may be split; the length stays whole on a shard.
DIAGONAL_RECURRENCE = Operation(
    name="diagonal_recurrence",
    operand_axes={"decay": ("batch", None, "mlp"), "x": ("batch", None, "mlp")},
    output_axes=(("batch", None, "mlp"),),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiagonalRecurrenceProblem:
    """`channels` independent first-order recurrences over `length` tokens of each row, in fp32."""

    batch: int
    length: int
    channels: int
    dtype: str = "float32"

    def describe(self) -> str:
        """Returns one line, such as "float32[8,4096,2560]"."""
        return f"{self.dtype}[{self.batch},{self.length},{self.channels}]"

    def localize(self, operand_shapes: Mapping[str, tuple[int, ...]]) -> "DiagonalRecurrenceProblem":
        """Returns the problem of one shard, whose operands have these shapes."""
        batch, _, channels = operand_shapes["x"]
        return dataclasses.replace(self, batch=batch, channels=channels)
