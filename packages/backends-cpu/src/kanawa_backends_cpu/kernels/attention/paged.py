"""attention.cpu.paged: attention over pages that reads the filled pages only, not a page table's whole width.

Rows of a batch differ in length, and a page table is as wide as its longest row. A row's keys are cut into chunks of a
few pages; all rows' chunks form one list, and a loop processes several of them at a time until the list ends. Chunks of
a row are merged by log-sum-exp.

Legend: B rows, T queries a row, P pages of N tokens, R table entries a row, S keys of a chunk, C chunks at once, K key
heads, G query heads a key head, M = T * G, D head width, Dv value width.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from kanawa.kernels.attention import scores as sc
from kanawa.kernels.attention.operands import q_positions
from kanawa.kernels.attention.paged import as_floats
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands, Tuning
from kanawa.kernels.verdict import Verdict, first_refusal

from kanawa_backends_cpu.kernels.attention.matmuls import matmul_of_chunks
from kanawa_backends_cpu.kernels.attention.tiles import top_for


class PagedAttention(Kernel):
    """Chunks of pages in one list for all rows, with oneDNN's matmuls where jaxlib has them."""

    name: ClassVar[str] = "attention.cpu.paged"
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"alibi", "pages of bits"})

    #: Keys of a chunk: few, so that a short row wastes little, but enough for a matmul.
    decode_keys: ClassVar[int] = 64
    prefill_keys: ClassVar[int] = 128
    #: Query rows of all chunks that are processed at once.
    most_rows: ClassVar[int] = 128
    fewest_items: ClassVar[int] = 8

    def supports(self, problem: AttentionProblem, device: Any) -> Verdict:
        """Returns support for rows over pages, without a bias."""
        return first_refusal(
            (not problem.paged, "keys are dense; it takes pages"),
            (problem.ragged_sequences is not None, "queries are ragged; it takes rows of equally many"),
            (problem.has_bias, "it takes no dense bias"),
            (problem.mode == "train", "it has no backward; it takes prefill and decode"),
        )

    def tunings(self, problem: AttentionProblem, device: Any) -> tuple[Tuning, ...]:
        """Returns the keys of a chunk worth measuring beside its own choice."""
        own, reach = self._keys(problem), problem.kv_length
        return tuple((("keys", keys),) for keys in (32, 64, 128, 256) if keys != own and keys <= reach)

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns (out, log-sum-exp fp32 [B, H, T], sinks included)."""
        size = problem.page_size or 1
        items = _Items.of(problem, operands, max(1, self._keys(problem) // size))
        widest = problem.batch * -(-problem.kv_length // (items.pages * size))
        # A row has a few chunks; a step wider than the list would waste work.
        large = min(widest, max(self.fewest_items, 4 * problem.batch), max(1, self.most_rows // problem.q_length))
        small = -(-large // 2)
        rows = (problem.batch, problem.num_kv_heads, problem.q_length * problem.group_size)
        start = Sums(jnp.full(rows, sc.MASKED), jnp.zeros(rows), jnp.zeros((*rows, problem.v_head_dim)))
        if widest <= 2:
            return finish(problem, operands, items.add(start, jnp.int32(0), widest))

        def unfinished(carry: tuple[jax.Array, Sums]) -> jax.Array:
            return carry[0] < items.ends[-1]

        def add(count: int) -> Callable[[tuple[jax.Array, Sums]], tuple[jax.Array, Sums]]:
            return lambda carry: (carry[0] + count, items.add(carry[1], carry[0], count))

        def body(carry: tuple[jax.Array, Sums]) -> tuple[jax.Array, Sums]:
            # The branch does more than save work: without it XLA converts a whole bfloat16 pool to float32 before the
            # loop.
            if problem.q_length > 1:
                # With many queries a chunk a second, smaller step saves little, and is one more body to compile.
                after: tuple[jax.Array, Sums] = jax.lax.cond(items.ends[-1] > carry[0], add(large), lambda c: c, carry)
            else:
                after = jax.lax.cond(items.ends[-1] - carry[0] > small, add(large), add(small), carry)
            return after

        return finish(problem, operands, jax.lax.while_loop(unfinished, body, (jnp.int32(0), start))[1])

    def _keys(self, problem: AttentionProblem) -> int:
        return self.setting("keys", self.decode_keys if problem.q_length == 1 else self.prefill_keys)


class Sums(NamedTuple):
    """The online softmax of each query row: largest score, sum of exponentials, weighted sum of values; all fp32."""

    top: jax.Array
    total: jax.Array
    values: jax.Array


class _Items(NamedTuple):
    """The list of chunks: `ends` [B] are cumulative counts by row, `first` [B] is each row's first chunk."""

    problem: AttentionProblem
    operands: Operands
    queries: jax.Array
    positions: jax.Array
    table: jax.Array
    ends: jax.Array
    first: jax.Array
    counts: jax.Array
    pages: int

    @classmethod
    def of(cls, problem: AttentionProblem, operands: Operands, pages: int) -> "_Items":
        """Returns the list of chunks of `pages` pages."""
        keys = pages * (problem.page_size or 1)
        lengths = jnp.clip(operands["kv_lengths"], 0, problem.kv_length).astype(jnp.int32)
        first, left = jnp.zeros_like(lengths), (problem.mask.window or (None, None))[0]
        if left is not None and not (problem.mask.prefix or problem.has_q_positions):
            # No query sees keys before the first query's window.
            first = jnp.maximum(lengths - problem.q_length - left, 0) // keys
        counts = jnp.maximum(-(-lengths // keys) - first, 0)
        q = operands["q"]
        q = q * problem.scale if sc.scale_in_queries(problem) else q
        # One shape for all groups of heads: [B, K, T * G, D].
        split = q.reshape(*q.shape[:2], problem.num_kv_heads, problem.group_size, problem.head_dim)
        queries = split.transpose(0, 2, 1, 3, 4).reshape(problem.batch, problem.num_kv_heads, -1, problem.head_dim)
        positions = jnp.broadcast_to(q_positions(problem, operands), (problem.batch, problem.q_length))
        missing = -operands["page_table"].shape[1] % pages
        table = jnp.pad(operands["page_table"], ((0, 0), (0, missing)))
        return cls(problem, operands, queries, positions, table, jnp.cumsum(counts), first, counts, pages)

    def add(self, sums: Sums, start: jax.Array, count: int) -> Sums:
        """Returns the sums with chunks `start` to `start + count` of the list."""
        problem, item = self.problem, start + jnp.arange(count, dtype=jnp.int32)
        row = jnp.sum(item[:, None] >= self.ends[None], axis=1, dtype=jnp.int32)
        real, row = row < problem.batch, jnp.minimum(row, problem.batch - 1)
        # The chunk's number in its row.
        place = item - (self.ends[row] - self.counts[row]) + self.first[row]
        place = jnp.where(real, place, 0)
        entries = place[:, None] * self.pages + jnp.arange(self.pages, dtype=jnp.int32)[None]
        pages = jnp.clip(self.table[row[:, None], entries], 0, self.operands["k"].shape[0] - 1)
        k, v = (as_floats(problem, _read(self.operands[name], pages)) for name in ("k", "v"))
        mask = self._mask(row, real, place * k.shape[1], k.shape[1])
        scores = self._scores(row, k, place * k.shape[1], mask)
        top = top_for(v.dtype.name, jnp.max(scores, axis=-1))
        weights = jnp.where(mask, jnp.exp(scores - top[..., None]), 0.0).astype(v.dtype)
        total = jnp.sum(weights, axis=-1, dtype=jnp.float32)
        values = matmul_of_chunks(weights, v, transpose=False)
        return _merged(sums, Sums(top, total, values), row, real)

    def _mask(self, row: jax.Array, real: jax.Array, start: jax.Array, keys: int) -> jax.Array:
        """Returns the mask of the chunks: bool [C, 1, M, S]."""
        problem, position = self.problem, start[:, None] + jnp.arange(keys, dtype=jnp.int32)[None]
        prefix = self.operands.get("prefix_lengths")
        seen = problem.mask.allowed(self.positions[row], position, None, None, None if prefix is None else prefix[row])
        exists = (position < self.operands["kv_lengths"][row][:, None]) & real[:, None]
        seen = exists[:, None] if seen is None else seen & exists[:, None]
        seen = jnp.broadcast_to(seen, (row.shape[0], problem.q_length, keys))
        return jnp.repeat(seen, problem.group_size, axis=1)[:, None] if problem.group_size > 1 else seen[:, None]

    def _scores(self, row: jax.Array, k: jax.Array, start: jax.Array, mask: jax.Array) -> jax.Array:
        """Returns fp32 scores [C, K, M, S], MASKED where the mask is False."""
        problem = self.problem
        scores = matmul_of_chunks(self.queries[row], k, transpose=True)
        if not sc.scale_in_queries(problem):
            scores = scores * problem.scale
        if problem.logit_cap is not None:
            scores = problem.logit_cap * jnp.tanh(scores / problem.logit_cap)
        if problem.has_alibi:
            at = (start[:, None] + jnp.arange(k.shape[1], dtype=jnp.int32)[None])[:, None]
            distance = jnp.abs(self.positions[row][..., None] - at).astype(jnp.float32)
            slopes = self.operands["alibi_slopes"].astype(jnp.float32).reshape(1, problem.num_kv_heads, 1, -1, 1)
            scores = scores - (slopes * distance[:, None, :, None]).reshape(scores.shape)
        return jnp.where(mask, scores, sc.MASKED)


def _read(pool: jax.Array, pages: jax.Array) -> jax.Array:
    """Returns the pages of each chunk [C, S, K, D]; copying whole pages is fastest."""
    count, size, *rest = pool.shape
    # The indices are clipped already, and a check of each would make the copy slower.
    flat = pool.reshape(count, -1).at[pages].get(mode="promise_in_bounds")
    return flat.reshape(pages.shape[0], pages.shape[1] * size, *rest)


def _merged(sums: Sums, new: Sums, row: jax.Array, real: jax.Array) -> Sums:
    """Returns the rows' sums merged with those of chunks: `row` is a chunk's row; only `real` chunks count."""
    rows = sums.top.shape[0]
    if rows == 1:
        top = jnp.maximum(sums.top, jnp.max(new.top, axis=0, keepdims=True))
        share = jnp.exp(new.top - top)
        total = jnp.sum(new.total * share, axis=0, keepdims=True)
        values = jnp.sum(new.values * share[..., None], axis=0, keepdims=True)
    else:
        owner = (row[:, None] == jnp.arange(rows)[None]) & real[:, None]
        owned = jnp.where(owner[:, :, None, None], new.top[:, None], sc.MASKED)
        top = jnp.maximum(sums.top, jnp.max(owned, axis=0))
        share = jnp.exp(new.top - top[row])
        # A scatter adds chunk by chunk on one core; a matmul with a matrix of zeros and ones adds all at once.
        # Zero times NaN would be NaN in every row, so non-finite sums are left out, and set in their own row after.
        to_rows = owner.astype(jnp.float32).T
        total, values = new.total * share, new.values * share[..., None]
        finite = jnp.isfinite(total) & jnp.all(jnp.isfinite(values), axis=-1)
        broken = jnp.any(owner[:, :, None, None] & ~finite[:, None], axis=0)
        total = jnp.where(broken, jnp.nan, _dot(to_rows, jnp.where(finite, total, 0.0)))
        values = _dot(to_rows, jnp.where(finite[..., None], values, 0.0))
    decay = jnp.exp(sums.top - top)
    return Sums(top, sums.total * decay + total, sums.values * decay[..., None] + values)


def _dot(to_rows: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.dot(to_rows, x.reshape(x.shape[0], -1)).reshape(to_rows.shape[0], *x.shape[1:])


def finish(problem: AttentionProblem, operands: Operands, sums: Sums) -> tuple[jax.Array, jax.Array]:
    """Returns out [B, T, H, Dv] in v's dtype, zero in fully masked rows, and the log-sum-exp [B, H, T]."""
    top, total, values = sums
    shape = (problem.batch, problem.num_kv_heads, problem.q_length, problem.group_size)
    if problem.has_sinks:
        sinks = operands["sinks"].astype(jnp.float32).reshape(1, problem.num_kv_heads, 1, problem.group_size)
        sinks = jnp.broadcast_to(sinks, shape).reshape(top.shape)
        highest = jnp.maximum(top, sinks)
        decay = jnp.where(top > sc.MASKED, jnp.exp(top - highest), 0.0)
        total, values = total * decay + jnp.exp(sinks - highest), values * decay[..., None]
        top = highest
    # A row whose scores are all minus infinity is masked too; NaN compares false, and must propagate.
    saw = (top > sc.MASKED) | jnp.isnan(top) | jnp.isnan(total)
    values = jnp.where(saw[..., None], values / jnp.where(saw, total, 1.0)[..., None], 0.0)
    lse = jnp.where(saw, top + jnp.log(jnp.where(saw, total, 1.0)), -jnp.inf)
    out = values.reshape(*shape, problem.v_head_dim).transpose(0, 2, 1, 3, 4)
    out = out.reshape(problem.batch, problem.q_length, problem.num_heads, problem.v_head_dim)
    heads = lse.reshape(shape).transpose(0, 1, 3, 2).reshape(problem.batch, problem.num_heads, problem.q_length)
    return out.astype(problem.dtype), heads
