"""AttentionProblem: all that is static about one call of attention, and the operation's axes."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

import jax
import numpy as np

from kanawa.kernels.masks import MaskSpec
from kanawa.kernels.operation import Operands, Operation, Problem

Mode = Literal["train", "prefill", "decode"]

#: A local kernel needs all keys of its queries, so neither keys nor pages are ever split for one. Key heads are split
#: like query heads, whatever the rules say of them elsewhere: a query head needs its key head on its shard.
ATTENTION = Operation(
    name="attention",
    operand_axes={
        "q": ("batch", "length", "heads", None),
        "k": ("batch", None, "heads", None),
        "v": ("batch", None, "heads", None),
        "q_positions": ("batch", "length"),
        "kv_positions": ("batch", None),
        "lookahead": ("batch", "length"),
        "q_segment_ids": ("batch", "length"),
        "kv_segment_ids": ("batch", None),
        "prefix_lengths": ("batch",),
        "kv_lengths": ("batch",),
        "bias": ("batch", "heads", "length", None),
        "sinks": ("heads",),
        "alibi_slopes": ("heads",),
        "dropout_key": (None,),
        "dropout_queries": ("batch", "length"),
        "dropout_heads": ("heads",),
        "page_table": ("batch", None),
        "query_starts": (None,),
    },
    output_axes=(("batch", "length", "heads", None),),
    dominant="heads",
)

#: Where k and v are page pools, shared by all rows.
PAGED_AXES = {
    "k": (None, None, "heads", None),
    "v": (None, None, "heads", None),
}

#: Where q is one row with the queries of many sequences: what is per sequence stays whole.
RAGGED_AXES = {"page_table": (None, None), "kv_lengths": (None,)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionProblem(Problem):
    """Static description of an attention call; a kernel is asked about the local, per-shard one.

    Attributes:
        batch: rows of q.
        q_length, kv_length: queries and keys per row; paged: kv_length is the page table's reach.
        mask: with `mask.needs_segments` true, segment ids are operands.
        scale: what scores are multiplied with.
        logit_cap: scores become cap * tanh(scores / cap), before bias and mask; None for no cap.
        bias_shape: shape of the bias, dimensions of size 1 broadcasting; None without one.
        has_sinks: one learned logit per query head joins the softmax and contributes no value.
        has_alibi: slope * |query position - key position| is subtracted from each head's scores, after the cap; the
            slopes are constants.
        dropout_rate: the share of attention weights that is dropped, the others growing by 1 / (1 - rate)
            (`attention.dropout` says which).
        has_q_positions, has_kv_positions: explicit operands; otherwise positions are 0, 1, 2, …
        has_lookahead: each query has a number of later positions that causality shows it too.
        has_kv_lengths: keys from row b's kv_lengths[b] on don't exist, and queries without explicit
            positions are the row's last ones: query t sits at kv_lengths[b] - q_length + t.
        mode: "prefill" and "decode" are never differentiated.
        page_size: tokens in a page; None for dense keys and values.
        kv_bits: pages hold 16-bit floats as integers of the same bits, uint16 (`attention` says why).
        ragged_sequences: q is one row holding this many sequences' queries, cut at query_starts;
            else None.
        row_invariant: see `ExecutionPlan`; kernels that don't know how leave it.
    """

    batch: int
    q_length: int
    kv_length: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str
    mask: MaskSpec
    scale: float
    logit_cap: float | None = None
    bias_shape: tuple[int, int, int, int] | None = None
    has_sinks: bool = False
    has_alibi: bool = False
    dropout_rate: float = 0.0
    has_q_positions: bool = False
    has_kv_positions: bool = False
    has_kv_lengths: bool = False
    has_lookahead: bool = False
    mode: Mode = "train"
    page_size: int | None = None
    kv_bits: bool = False
    ragged_sequences: int | None = None
    row_invariant: bool = False

    @property
    def has_bias(self) -> bool:
        """True where a dense bias is added to the scores."""
        return self.bias_shape is not None

    @property
    def extras(self) -> frozenset[str]:
        """What a kernel has to say that it takes (`Kernel.takes`): "alibi", "dropout", "lookahead", "pages of bits"."""
        named = (
            ("alibi", self.has_alibi),
            ("dropout", self.dropout_rate > 0),
            ("lookahead", self.has_lookahead),
            ("pages of bits", self.kv_bits),
        )
        return frozenset(name for name, here in named if here)

    @property
    def has_segments(self) -> bool:
        """True where segment ids are operands."""
        return self.mask.needs_segments

    @property
    def paged(self) -> bool:
        """True where k and v are page pools."""
        return self.page_size is not None

    @property
    def group_size(self) -> int:
        """Query heads per key head."""
        return self.num_heads // self.num_kv_heads

    @property
    def has_default_positions(self) -> bool:
        """True where queries and keys sit at 0, 1, 2, …: the mask is known when compiling."""
        explicit = self.has_q_positions or self.has_kv_positions
        return not (explicit or self.has_kv_lengths or self.paged)

    @property
    def may_mask_whole_rows(self) -> bool:
        """True unless every query is known to see at least one key."""
        if self.has_kv_lengths or self.paged:
            return True
        if self.mask.is_full:
            return False
        # Queries past the last key would have no key at their own position.
        aligned = self.has_default_positions and self.q_length <= self.kv_length
        return not (aligned and self.mask.keeps_own_position)

    @property
    def pairs(self) -> int:
        """Query-key pairs of one row and head that causality, window and chunk leave; other conditions count as met."""
        low, high = self._visible
        return int(np.maximum(high - low + 1, 0).sum())

    def visited_share(self, grid: tuple[int, ...]) -> float:
        """Returns the share of a grid's steps whose tile holds a pair: two of its dimensions are queries and keys."""
        pairs = self.pairs / (self.q_length * self.kv_length)
        tiles = [size for size in grid if size > 0]
        # There may be as many tiles as key heads: only one dimension counts heads.
        heads = next((heads for heads in (self.num_heads, self.num_kv_heads) if heads in tiles), 0)
        if heads and len(tiles) > 2:
            tiles.remove(heads)
        if len(tiles) < 2:
            return pairs
        # Backward kernels go through keys outside and queries inside: where both are cut alike it is the same.
        queries, keys = -(-self.q_length // tiles[-2]), -(-self.kv_length // tiles[-1])
        low, high = self._visible
        starts = np.arange(0, self.q_length, queries)
        first = np.minimum.reduceat(low, starts) // keys
        end = np.maximum.reduceat(high, starts) // keys
        visited = np.maximum(end - first + 1, 0).sum() / (tiles[-2] * tiles[-1])
        return float(min(1.0, max(visited, pairs)))

    @property
    def _visible(self) -> tuple[np.ndarray, np.ndarray]:
        """The first and the last key that each query sees."""
        mask = self.mask
        # Positions that are operands aren't known here: queries are then taken to be the row's last ones.
        first = 0 if self.has_default_positions else max(0, self.kv_length - self.q_length)
        at = np.arange(first, first + self.q_length)
        low, high = np.zeros_like(at), np.full_like(at, self.kv_length - 1)
        left, right = mask.window or (None, None)
        if mask.causal:
            high = np.minimum(high, at)
        if left is not None:
            low = np.maximum(low, at - left)
        if right is not None:
            high = np.minimum(high, at + right)
        if mask.chunk is not None:
            low = np.maximum(low, at // mask.chunk * mask.chunk)
            high = np.minimum(high, at // mask.chunk * mask.chunk + mask.chunk - 1)
        return low, high

    @property
    def matmul_flops(self) -> float:
        """FLOPs of the scores, or of weighing the values: the mean of both where their widths differ."""
        return float(self.batch * self.num_heads * self.pairs * (self.head_dim + self.v_head_dim))

    def describe(self) -> str:
        """Returns one line, such as "train bfloat16 q[8,4096,32,128] kv[8,4096,8,128] causal"."""
        q = f"q[{self.batch},{self.q_length},{self.num_heads},{self.head_dim}]"
        kv = f"kv[{self.batch},{self.kv_length},{self.num_kv_heads},{self.v_head_dim}]"
        parts = [self.mode, self.dtype, q, kv, self.mask.describe()]
        if not math.isclose(self.scale, self.head_dim**-0.5):
            parts.append(f"scale={self.scale:g}")
        if self.logit_cap is not None:
            parts.append(f"cap={self.logit_cap:g}")
        if self.bias_shape is not None:
            parts.append(f"bias{list(self.bias_shape)}")
        if self.dropout_rate:
            parts.append(f"dropout={self.dropout_rate:g}")
        if self.page_size is not None:
            parts.append(f"pages({self.page_size})")
        if self.kv_bits:
            parts.append("bits")
        if self.ragged_sequences is not None:
            parts.append(f"ragged({self.ragged_sequences})")
        flags = ("sinks", "alibi", "q_positions", "kv_positions", "kv_lengths", "lookahead")
        parts += [flag for flag in flags if getattr(self, f"has_{flag}")]
        parts += ["row-invariant"] * self.row_invariant
        return " ".join(parts)

    def localize(self, operand_shapes: Mapping[str, tuple[int, ...]]) -> "AttentionProblem":
        """Returns the problem of one shard, whose operands have these shapes."""
        q, k = operand_shapes["q"], operand_shapes["k"]
        bias = operand_shapes.get("bias")
        return dataclasses.replace(
            self,
            batch=q[0],
            q_length=q[1],
            num_heads=q[2],
            kv_length=self.kv_length if self.paged else k[1],
            num_kv_heads=k[2],
            bias_shape=None if bias is None else (bias[0], bias[1], bias[2], bias[3]),
        )

    def result(self, operands: Operands) -> jax.ShapeDtypeStruct:
        """Returns [B, T, H, Dv] in the dtype of v, or in q's where v holds bits."""
        dtype = operands["q" if self.kv_bits else "v"].dtype
        return jax.ShapeDtypeStruct((self.batch, self.q_length, self.num_heads, self.v_head_dim), dtype)
