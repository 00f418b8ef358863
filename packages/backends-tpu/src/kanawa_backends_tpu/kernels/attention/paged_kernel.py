"""The paged kernel itself: one pass over each piece's keys with a running softmax, pages fetched ahead.

Legend: rows R of queries (tokens x heads of a group), columns C of keys, D widths.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.attention.scores import MASKED, scale_in_queries

from kanawa_backends_tpu.kernels.attention.paged_plan import PagedPlan
from kanawa_backends_tpu.kernels.attention.paged_work import Pages, Piece, Work

#: Scores from queries, what weights give of the values, and which scores count beside the mask (None: all).
_Products = tuple[Callable[[jax.Array], jax.Array], Callable[[jax.Array], jax.Array], jax.Array | None]

_LANES = 128
#: Of 64 MiB (v7x) and more: what a step holds is planned well below it.
_VMEM_LIMIT = 48 * 2**20


def paged_attention(
    problem: AttentionProblem,
    plan: PagedPlan,
    scalars: dict[str, jax.Array],
    q: jax.Array,
    pools: tuple[jax.Array, jax.Array],
    sinks: jax.Array | None,
    interpret: bool,
) -> jax.Array:
    """Returns [heads, tokens x group, Dv] in q's dtype.

    q: [heads, tokens x group, D]; pools: as they lie (`PageLayout.view`); sinks: fp32 [heads, rows of a block, 1];
    scalars: as `Work` has them.
    """
    names = tuple(scalars)
    num_sink_refs = 0 if sinks is None else 1

    def work_of(refs: tuple[Any, ...]) -> Work:
        q_length = None if problem.ragged_sequences is not None else problem.q_length
        return Work(plan, problem.mask, q_length, **dict(zip(names, refs, strict=True)))

    def body(*refs: Any) -> None:
        scalar_refs, rest = refs[: len(names)], refs[len(names) :]
        q_ref, k_pool, v_pool = rest[:3]
        sinks_ref = rest[3] if num_sink_refs else None
        o_ref, k_buffer, v_buffer, arrived, slot, top, total, acc = rest[3 + num_sink_refs :]
        work = work_of(scalar_refs)
        pages = Pages(work, k_pool, v_pool, k_buffer, v_buffer, arrived)
        sums = (top, total, acc)
        _step(problem, plan, pages, q_ref, sinks_ref, o_ref, slot, sums)

    def block_of_queries(core: Any, step: Any, *refs: Any) -> tuple[Any, Any, Any]:
        return 0, work_of(refs).block(core, step), 0

    rows = plan.rows
    in_specs = [
        pl.BlockSpec((plan.heads, rows, problem.head_dim), block_of_queries),
        pl.BlockSpec(memory_space=pl.ANY),
        pl.BlockSpec(memory_space=pl.ANY),
    ]
    if sinks is not None:
        in_specs.append(pl.BlockSpec(sinks.shape, lambda *_: (0, 0, 0)))
    widths = (problem.head_dim, problem.v_head_dim)
    buffers = [
        pltpu.VMEM(plan.layout.buffer_shape(width), pool.dtype) for pool, width in zip(pools, widths, strict=True)
    ]
    shape = jax.ShapeDtypeStruct((*q.shape[:2], problem.v_head_dim), q.dtype)
    call = pl.pallas_call(
        body,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(names),
            grid=(plan.cores, plan.steps),
            in_specs=in_specs,
            out_specs=pl.BlockSpec((plan.heads, rows, problem.v_head_dim), block_of_queries),
            scratch_shapes=[
                *buffers,
                pltpu.SemaphoreType.DMA((2, 2)),
                pltpu.SMEM((1,), jnp.int32),
                pltpu.VMEM((plan.heads, rows, _LANES), jnp.float32),
                pltpu.VMEM((plan.heads, rows, _LANES), jnp.float32),
                pltpu.VMEM((plan.heads, rows, problem.v_head_dim), jnp.float32),
            ],
        ),
        out_shape=shape,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=_VMEM_LIMIT
        ),
        interpret=interpret,
        name="kanawa_paged_attention",
    )
    out: jax.Array = call(*scalars.values(), q, *pools, *(() if sinks is None else (sinks,)))
    return out


def _step(
    problem: AttentionProblem,
    plan: PagedPlan,
    pages: Pages,
    q_ref: Any,
    sinks_ref: Any,
    o_ref: Any,
    slot_ref: Any,
    sums: tuple[Any, Any, Any],
) -> None:
    """One step of the grid: a piece's queries against all of its keys."""
    work, steps = pages.work, plan.steps
    core, step = pl.program_id(0), pl.program_id(1)
    piece = work.piece(core, step)
    top, total, acc = sums

    @pl.when(step == 0)
    def _() -> None:
        slot_ref[0] = 0
        _start_next(work, pages, core, jnp.int32(-1), jnp.int32(0))

    @pl.when((step == 0) | (piece.block != work.block(core, jnp.maximum(step - 1, 0))))
    def _() -> None:
        top[...] = jnp.full_like(top, MASKED)
        total[...] = jnp.zeros_like(total)
        acc[...] = jnp.zeros_like(acc)

    def one_block(block: Any, carry: None) -> None:
        slot = slot_ref[0]

        @pl.when(block + 1 < piece.end)
        def _() -> None:
            pages.start(piece, block + 1, 1 - slot)

        @pl.when(block + 1 == piece.end)
        def _() -> None:
            _start_next(work, pages, core, step, 1 - slot)

        pages.wait(piece, block, slot)
        pages.blank(piece, block, slot)
        _attend(problem, plan, pages, piece, block, slot, q_ref, sums)
        slot_ref[0] = 1 - slot

    jax.lax.fori_loop(piece.first, piece.end, one_block, None)

    @pl.when((step == steps - 1) | (piece.block != work.block(core, jnp.minimum(step + 1, steps - 1))))
    def _() -> None:
        for head in range(plan.heads):
            share = total[head][:, :1]
            if sinks_ref is not None:
                share = share + jnp.exp(sinks_ref[head] - top[head][:, :1])
            # Nothing was seen where the sum is zero: zeros, not NaN.
            o_ref[head] = (acc[head] / jnp.where(share == 0.0, 1.0, share)).astype(o_ref.dtype)


def _start_next(work: Work, pages: Pages, core: Any, step: Any, slot: Any) -> None:
    """Sends for the first keys of the core's next piece that needs any."""
    steps = work.plan.steps

    def needs_none(at: Any) -> Any:
        piece = work.piece(core, jnp.minimum(at, steps - 1))
        return (at < steps) & (piece.first == piece.end)

    following = jax.lax.while_loop(needs_none, lambda at: at + 1, step + 1)

    @pl.when(following < steps)
    def _() -> None:
        piece = work.piece(core, following)
        pages.start(piece, piece.first, slot)


def _attend(
    problem: AttentionProblem,
    plan: PagedPlan,
    pages: Pages,
    piece: Piece,
    block: Any,
    slot: Any,
    q_ref: Any,
    sums: tuple[Any, Any, Any],
) -> None:
    """Adds one block of keys to the sums of the piece's rows."""
    attend = functools.partial(_attend_rows, problem, plan, pages, piece, block, slot, q_ref, sums)
    base = piece.block * plan.tokens
    if plan.few == plan.tokens:
        attend(0, plan.tokens)
        return
    first = (piece.low - base) // plan.few
    last = (piece.high - 1 - base) // plan.few
    if plan.flat:
        attend(first, plan.few)
        return
    pl.when(first == last)(lambda: attend(first * plan.few, plan.few))
    pl.when(first != last)(lambda: attend(0, plan.tokens))


def _attend_rows(
    problem: AttentionProblem,
    plan: PagedPlan,
    pages: Pages,
    piece: Piece,
    block: Any,
    slot: Any,
    q_ref: Any,
    sums: tuple[Any, Any, Any],
    first: Any,
    tokens: int,
) -> None:
    """Adds one block of keys to the sums of `tokens` tokens from the block's `first` on."""
    top, total, acc = sums
    count = tokens * plan.group
    start = first * plan.group
    if not isinstance(start, int):
        start = pl.multiple_of(start, 16)
    rows = pl.ds(start, count)
    token = piece.block * plan.tokens + first + _quotient(_iota((count, 1), 0), plan.group)
    key = block * plan.keys + _quotient(_iota((1, plan.columns), 1), plan.columns // plan.keys)
    seen = _seen(problem, piece, token, key)
    exact = jax.lax.Precision.HIGHEST if problem.dtype == "float32" else None
    dot = functools.partial(jax.lax.dot_general, precision=exact, preferred_element_type=jnp.float32)
    products = _flat_products if plan.flat else _products_by_head
    for head, (scores_of, weigh, own) in enumerate(products(problem, plan, pages, slot, dot, q_ref, count)):
        allowed = seen if own is None else seen & own
        scores = scores_of(q_ref[head, rows])
        if not scale_in_queries(problem):
            scores = scores * problem.scale
        if problem.logit_cap is not None:
            scores = problem.logit_cap * jnp.tanh(scores / problem.logit_cap)
        scores = jnp.where(allowed, scores, MASKED)
        before = top[head, rows][:, :1]
        after = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
        # A row that has seen nothing has its maximum at MASKED, where the exponential would be one.
        weights = jnp.where(allowed, jnp.exp(scores - after), 0.0)
        rescale = jnp.exp(before - after)
        top[head, rows] = jnp.broadcast_to(after, (count, _LANES))
        share = rescale * total[head, rows][:, :1] + jnp.sum(weights, axis=1, keepdims=True)
        total[head, rows] = jnp.broadcast_to(share, (count, _LANES))
        acc[head, rows] = acc[head, rows] * rescale + weigh(weights.astype(q_ref.dtype))


def _products_by_head(
    problem: AttentionProblem, plan: PagedPlan, pages: Pages, slot: Any, dot: Any, q_ref: Any, count: int
) -> Iterator[_Products]:
    """Yields each key head's products, whose rows are its own."""
    del problem, count
    layout, dtype = plan.layout, q_ref.dtype
    k_of, v_of = (layout.by_head(buffer, slot, dtype) for buffer in (pages.k_buffer, pages.v_buffer))
    for head in range(plan.heads):
        k, v = k_of(head), v_of(head)
        yield functools.partial(_second, layout.scores, dot, k), functools.partial(_second, layout.weigh, dot, v), None


def _flat_products(
    problem: AttentionProblem, plan: PagedPlan, pages: Pages, slot: Any, dot: Any, q_ref: Any, count: int
) -> Iterator[_Products]:
    """Yields the products of all heads at once, where each row keeps those with its own key head."""
    layout, dtype = plan.layout, q_ref.dtype
    own_head = _quotient(_iota((count, 1), 0), problem.group_size)
    if layout.order == "tokens":
        k, v = (layout.all_heads(buffer, slot, dtype) for buffer in (pages.k_buffer, pages.v_buffer))
        own = own_head == _remainder(_iota((1, plan.columns), 1), layout.heads)
        yield functools.partial(_second, layout.scores, dot, k), functools.partial(_second, layout.weigh, dot, v), own
        return
    k_of, v_of = (layout.by_head(buffer, slot, dtype) for buffer in (pages.k_buffer, pages.v_buffer))

    def scores(q: jax.Array) -> jax.Array:
        total = layout.scores(dot, q, k_of(0))
        for head in range(1, layout.heads):
            total = jnp.where(own_head == head, layout.scores(dot, q, k_of(head)), total)
        return total

    def weigh(weights: jax.Array) -> jax.Array:
        parts = (jnp.where(own_head == head, weights, jnp.zeros_like(weights)) for head in range(layout.heads))
        return functools.reduce(jnp.add, (layout.weigh(dot, part, v_of(head)) for head, part in enumerate(parts)))

    yield scores, weigh, None


def _second(product: Any, dot: Any, right: jax.Array, left: jax.Array) -> jax.Array:
    result: jax.Array = product(dot, left, right)
    return result


def _seen(problem: AttentionProblem, piece: Piece, token: jax.Array, key: jax.Array) -> jax.Array:
    """Returns which keys [1, C] which tokens [R, 1] may see: bool [R, C]."""
    mask = problem.mask
    position = piece.offset + token
    owned = (token >= piece.low) & (token < piece.high)
    seen: jax.Array = owned & (key < piece.length)
    left, right = mask.window or (None, None)
    if mask.causal:
        seen &= key <= position
    if left is not None:
        seen &= key >= position - left
    if right is not None:
        seen &= key <= position + right
    if mask.chunk is not None:
        # Compared as a chunk's first and last position, so that only the column of positions is divided.
        first = _floor(position, mask.chunk) * mask.chunk
        seen &= (key >= first) & (key < first + mask.chunk)
    return seen


def _iota(shape: tuple[int, int], axis: int) -> jax.Array:
    return jax.lax.broadcasted_iota(jnp.int32, shape, axis)


def _quotient(x: jax.Array, divisor: int) -> jax.Array:
    """Returns x // divisor for counts from 0 on, which TPUs do as a shift or not at all."""
    if divisor & (divisor - 1) == 0:
        return x >> (divisor.bit_length() - 1)
    # Exact for the counts of a block, which are below 2**20: half a step away from where the quotient changes.
    return ((x.astype(jnp.float32) + 0.5) * (1.0 / divisor)).astype(jnp.int32)


def _remainder(x: jax.Array, divisor: int) -> jax.Array:
    return x - _quotient(x, divisor) * divisor


def _floor(x: jax.Array, divisor: int) -> jax.Array:
    if divisor & (divisor - 1) == 0:
        return x >> (divisor.bit_length() - 1)
    return jnp.floor((x.astype(jnp.float32) + 0.5) * (1.0 / divisor)).astype(jnp.int32)
