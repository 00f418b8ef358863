"""CrossEntropyProblem: all that is static about one call, and the operation's axes."""

import dataclasses
import math
from collections.abc import Mapping

from kanawa.arrays.axes import LogicalAxes
from kanawa.kernels.operation import SUMMED, Operation

#: Tokens are split by hand, so that the weight's gradient is added up over shards once and not once
#: a chunk; the vocabulary too, so that no shard ever holds all logits of a token. No fused kernel is expected.
SOFTMAX_CROSS_ENTROPY = Operation(
    name="softmax_cross_entropy",
    operand_axes={
        "hidden": ("batch", "length", None),
        "weight": (None, "vocab"),
        "targets": ("batch", "length"),
        "loss_weights": ("batch", "length"),
    },
    output_axes=(SUMMED,) * 5,
    manual_axes=("batch", "length", "vocab"),
    dominant="vocab",
    expects_fused=False,
    matmul_flops=lambda problem: problem.matmul_flops,
)

#: Where tokens come as one dimension.
FLAT_AXES: dict[str, LogicalAxes] = {
    "hidden": ("batch", None),
    "targets": ("batch",),
    "loss_weights": ("batch",),
}

#: Where the weight is an embedding.
TIED_AXES: dict[str, LogicalAxes] = {"weight": ("vocab", None)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEntropyProblem:
    """A projection of `tokens` rows to `vocab` logits, and the loss against one target each.

    Attributes:
        tied: the weight is an embedding [vocab, width], else [width, vocab].
        logit_cap: logits become cap * tanh(logits / cap); None for no cap.
        z_loss: coefficient of the squared log-sum-exp.
        label_smoothing: share of the target's probability spread evenly over the vocabulary.
        chunk_tokens: most tokens whose logits exist at a time on a shard; None leaves it to the
            kernel.
        vocab_axes: manual mesh axes over which the vocabulary is split: `vocab` then counts this
            shard's part, the next in order on the next shard, and a token's losses need a sum over them.
    """

    tokens: int
    width: int
    vocab: int
    dtype: str
    weight_dtype: str
    tied: bool = False
    logit_cap: float | None = None
    z_loss: float = 0.0
    label_smoothing: float = 0.0
    chunk_tokens: int | None = None
    vocab_axes: tuple[str, ...] = ()

    @property
    def matmul_flops(self) -> float:
        """FLOPs of the projection to this shard's part of the vocabulary."""
        return 2.0 * self.tokens * self.width * self.vocab

    def describe(self) -> str:
        """Returns one line, such as "bfloat16[8192,4096] vocab 128256 tied z_loss=0.0001"."""
        parts = [f"{self.dtype}[{self.tokens},{self.width}] vocab {self.vocab}"]
        parts += [f"weight {self.weight_dtype}"] * (self.weight_dtype != self.dtype)
        parts += ["tied"] * self.tied
        parts += [f"over {'x'.join(self.vocab_axes)}"] * bool(self.vocab_axes)
        for name in ("logit_cap", "z_loss", "label_smoothing", "chunk_tokens"):
            value = getattr(self, name)
            if value:
                parts.append(f"{name}={value:g}")
        return " ".join(parts)

    def localize(self, operand_shapes: Mapping[str, tuple[int, ...]]) -> "CrossEntropyProblem":
        """Returns the problem of one shard, whose operands have these shapes."""
        vocab = operand_shapes["weight"][0 if self.tied else 1]
        return dataclasses.replace(self, tokens=math.prod(operand_shapes["targets"]), vocab=vocab)
