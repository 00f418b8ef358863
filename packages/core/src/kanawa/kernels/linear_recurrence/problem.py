"""LinearRecurrenceProblem: all that is static about one call, and the operation's axes."""

import dataclasses
from collections.abc import Mapping

from kanawa.kernels.operation import Operation

#: The length stays whole on a shard: each token's state comes from the token before.
LINEAR_RECURRENCE = Operation(
    name="linear_recurrence",
    operand_axes={
        "q": ("batch", None, "kv_heads", None),
        "k": ("batch", None, "kv_heads", None),
        "v": ("batch", None, "heads", None),
        "log_decay": ("batch", None, "heads"),
        "beta": ("batch", None, "heads"),
        "initial_state": ("batch", "heads", None, None),
        "segment_ids": ("batch", None),
    },
    output_axes=(("batch", None, "heads", None), ("batch", "heads", None, None)),
    matmul_flops=lambda problem: problem.matmul_flops,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearRecurrenceProblem:
    """A state [key_dim, value_dim] for each row and head, written and read once a token.

    Attributes:
        num_groups: heads of q and k; head h of v uses group h // (num_heads / num_groups).
        delta: what is written is corrected by what the state already returns for the key.
        chunk_length: tokens worked on at a time; None leaves it to the kernel.
    """

    batch: int
    length: int
    num_groups: int
    num_heads: int
    key_dim: int
    value_dim: int
    dtype: str
    delta: bool = False
    has_initial_state: bool = False
    has_segments: bool = False
    chunk_length: int | None = None

    @property
    def matmul_flops(self) -> float:
        """FLOPs of writing every token into its state, or of reading every token from it."""
        return 2.0 * self.batch * self.length * self.num_heads * self.key_dim * self.value_dim

    def describe(self) -> str:
        """Returns one line, such as "bfloat16[8,4096] heads 24/1 state 128x64 delta segments"."""
        parts = [
            f"{self.dtype}[{self.batch},{self.length}] heads {self.num_heads}/{self.num_groups} "
            f"state {self.key_dim}x{self.value_dim}"
        ]
        parts += ["delta"] * self.delta + ["initial_state"] * self.has_initial_state
        parts += ["segments"] * self.has_segments
        if self.chunk_length is not None:
            parts.append(f"chunk_length={self.chunk_length}")
        return " ".join(parts)

    def localize(self, operand_shapes: Mapping[str, tuple[int, ...]]) -> "LinearRecurrenceProblem":
        """Returns the problem of one shard, whose operands have these shapes."""
        batch, _, heads, _ = operand_shapes["v"]
        groups = operand_shapes["k"][2]
        return dataclasses.replace(self, batch=batch, num_heads=heads, num_groups=groups)
