"""TokenExchangeProblem: all that is static about one exchange, and the operation's axes."""

import dataclasses
from collections.abc import Mapping

from kanawa.kernels.operation import Operation

#: It runs inside shard_map, where everything is local already: nothing is left to split.
TOKEN_EXCHANGE = Operation(
    name="token_exchange",
    operand_axes={"rows": (None, None), "send_sizes": (None,), "receive_offsets": (None,)},
    output_axes=((None, None), (None,)),
    manual_axes=(),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenExchangeProblem:
    """One shard's part of an exchange.

    Attributes:
        rows, width, dtype: of the rows that this shard may send.
        output_rows: size of the buffer it receives into.
        shards: number of shards that exchange.
        axis_names: the manual mesh axes exchanged over; empty for one shard.
        has_receive_offsets: whether the operands say where each source's rows go.
    """

    rows: int
    width: int
    dtype: str
    output_rows: int
    shards: int
    axis_names: tuple[str, ...] = ()
    has_receive_offsets: bool = False

    def describe(self) -> str:
        """Returns one line, such as "bfloat16[4096,2048] to [8192,2048] over expert=8"."""
        axes = "x".join(self.axis_names) or "nothing"
        out = f"[{self.output_rows},{self.width}]"
        offsets = " at given offsets" if self.has_receive_offsets else ""
        return f"{self.dtype}[{self.rows},{self.width}] to {out} over {axes}={self.shards}{offsets}"

    def localize(self, operand_shapes: Mapping[str, tuple[int, ...]]) -> "TokenExchangeProblem":
        """Returns itself: an exchange is described from one shard's side."""
        return self
