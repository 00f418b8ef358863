"""Sizes of one call of the paged kernel, all static: what a step of its grid holds on chip, and how many there are.

Legend: S sequences, T query tokens, H query heads, K key heads, N tokens a page.
"""

import dataclasses
import math

import jax.numpy as jnp
from kanawa.kernels.attention.problem import AttentionProblem

from kanawa_backends_tpu.kernels.attention.paged_layout import PageLayout, order_of

#: Rows of two 16-bit values in each 32-bit word: a slice of rows starts and ends at multiples of it.
_ROW_TILE = 16
#: Query rows (tokens x heads) of a block: running sums of 128-wide heads then take 2 MiB, and their statistics 4.
_ROWS = 4096
#: Query rows of one key head, whose scores exist at a time.
ROWS = 1024
#: Queries of a sequence that are attended to by themselves, not with the whole block they lie in: tokens that are
#: decoded beside a long prompt would else do a block's work each.
_FEW = 16
#: Keys of a block, and bytes of its keys or values: four such buffers are on chip.
KEYS = 512
_KEY_BYTES = 2 * 2**20
#: Tokens of a dense row that are read as one page, at most.
DENSE_PAGE = 128


@dataclasses.dataclass(frozen=True)
class PagedPlan:
    """Queries lie as [heads, tokens x group, width], in blocks of tokens; keys come in blocks of pages.

    Attributes:
        sequences: rows of the page table.
        entries: pages in a row of it.
        flat: one token a sequence: all query heads are rows of the products with each key head, of which each row keeps
            its own. Products are small beside reading the keys, and so is a softmax of all heads at once.
        heads: key heads whose rows lie apart; 1 if flat.
        layout: how keys and values lie.
        group: query rows of one token and such a head, filled up to a whole tile where flat.
        tokens: query tokens of a block.
        few: tokens of the smaller piece of a block; equal to `tokens` where there is none.
        blocks: of query tokens.
        steps: of the grid for each core: pieces of queries that are in one block and of one sequence.
        pages: of a block of keys.
        cores: TensorCores that share the work.
        length: query tokens of each sequence, filled up to whole blocks; None where they are cut at query_starts.
    """

    sequences: int
    entries: int
    page_size: int
    flat: bool
    heads: int
    layout: PageLayout
    group: int
    tokens: int
    few: int
    blocks: int
    steps: int
    pages: int
    cores: int
    length: int | None

    @property
    def keys(self) -> int:
        """Keys of a block."""
        return self.layout.keys

    @property
    def columns(self) -> int:
        """Columns of scores: where flat and keys of all heads alternate, of all heads."""
        return self.keys * (self.layout.heads if self.flat and self.layout.order == "tokens" else 1)

    @property
    def rows(self) -> int:
        """Query rows of a block and head."""
        return self.tokens * self.group


def plan_pages(
    problem: AttentionProblem, element_bytes: int, cores: int, block_keys: int = KEYS, block_rows: int = ROWS
) -> PagedPlan:
    """Returns the sizes for a paged problem whose pools hold elements of `element_bytes`.

    `block_keys` and `block_rows` are the most keys of a block, and query rows of one key head in it.
    """
    p, page_size = problem, problem.page_size or 1
    sequences = p.batch if p.ragged_sequences is None else p.ragged_sequences
    width = _whole(max(p.head_dim, p.v_head_dim), 128)
    entries = p.kv_length // page_size
    most_keys = min(block_keys, _KEY_BYTES // (p.num_kv_heads * width * element_bytes))
    pages = max(1, min(entries, most_keys // page_size))
    layout = PageLayout(order_of(p.num_kv_heads, p.head_dim, p.v_head_dim), pages * page_size, p.num_kv_heads)
    # Wider heads leave room for fewer rows.
    rows = tuple(most * 128 // width for most in (_ROWS, block_rows))
    pieces = _one_token(p, sequences, rows[0]) if _is_flat(p) else _tokens(p, sequences, *rows)
    # A core that had a block less would wait; where they don't come out even, one core does all.
    cores = cores if pieces.blocks % cores == 0 else 1
    own = pieces.own_steps // cores + pieces.shared_steps
    return PagedPlan(
        sequences, entries, page_size, pieces.flat, pieces.heads, layout, pieces.group, pieces.tokens, pieces.few,
        pieces.blocks, own, pages, cores, pieces.length,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Queries:
    """The part of a plan that is about queries; cores divide `own_steps` and each takes `shared_steps` more."""

    flat: bool
    heads: int
    group: int
    tokens: int
    few: int
    blocks: int
    own_steps: int
    shared_steps: int
    length: int | None


def _is_flat(problem: AttentionProblem) -> bool:
    return problem.ragged_sequences is None and problem.q_length == 1


def _one_token(problem: AttentionProblem, sequences: int, most_rows: int) -> _Queries:
    group = _whole(problem.num_heads, _ROW_TILE)
    tokens = _divisor(sequences, max(1, min(most_rows // 4 // group, 32)))
    return _Queries(True, 1, group, tokens, 1, sequences // tokens, sequences, 0, 1)


def _tokens(problem: AttentionProblem, sequences: int, most_rows: int, most_a_head: int) -> _Queries:
    group, heads, count = problem.group_size, problem.num_kv_heads, problem.q_length
    tokens = min(most_rows // (heads * group), most_a_head // group)
    tokens = min(max(_FEW, tokens // _FEW * _FEW), _whole(count, _FEW))
    if problem.ragged_sequences is not None:
        blocks = -(-count // tokens)
        # Each sequence may cut one block in two, and on which core's side isn't known beforehand.
        return _Queries(False, heads, group, tokens, _FEW, blocks, blocks, sequences, None)
    length = _whole(count, tokens)
    blocks = sequences * length // tokens
    return _Queries(False, heads, group, tokens, _FEW, blocks, blocks, 0, length)


def vmem_bytes(plan: PagedPlan, problem: AttentionProblem, element_bytes: int) -> int:
    """Returns what a step holds on chip: blocks of q and out twice, keys and values twice, sums and scores."""
    wide, wide_v = _whole(problem.head_dim, 128), _whole(problem.v_head_dim, 128)
    itemsize = jnp.dtype(problem.dtype).itemsize
    rows = plan.heads * plan.rows
    at_once = plan.few * plan.group if plan.flat else plan.rows
    queries = 2 * rows * (wide + wide_v) * itemsize
    keys = 2 * plan.keys * plan.layout.heads * (wide + wide_v) * element_bytes
    sums = rows * (wide_v + 2 * 128) * 4
    sinks = 2 * rows * 128 * 4 if problem.has_sinks else 0
    scores = 6 * at_once * _whole(plan.columns, 128) * 4
    return queries + keys + sums + sinks + scores


def dense_page(kv_length: int) -> int:
    """Returns how many tokens of a dense row are read as one page: small, as the last one is read whole."""
    return _divisor(kv_length, DENSE_PAGE)


def _divisor(number: int, largest: int) -> int:
    return next(size for size in range(min(number, largest), 0, -1) if number % size == 0)


def _whole(number: int, tile: int) -> int:
    return math.ceil(number / tile) * tile
