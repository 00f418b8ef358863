"""Which keys each piece of queries needs, and the copies of their pages: scalar work of the paged kernel.

A piece is what one block of queries holds of one sequence. Its keys come block after block, and while one is worked
on the next is copied, be it of the same piece or of a later one.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from kanawa.kernels.masks import MaskSpec

from kanawa_backends_tpu.kernels.attention.paged_plan import PagedPlan

Scalar = Any


@dataclasses.dataclass(frozen=True)
class Piece:
    """Queries `low` to `high` (tokens, counted as the blocks are) of `sequence`, and the blocks of keys they need.

    Token t sits at position `offset` + t. Key blocks are `first` to `end`; keys from `last` on aren't needed.
    """

    sequence: Scalar
    block: Scalar
    low: Scalar
    high: Scalar
    offset: Scalar
    length: Scalar
    first: Scalar
    end: Scalar
    last: Scalar


@dataclasses.dataclass(frozen=True)
class Work:
    """The pieces of one call, read from scalar memory.

    Attributes:
        table: the pages of each sequence, one after the other; None where row b of the pools is sequence b's.
        cuts: where pieces begin, one more than there are; None where each sequence has `plan.length` queries.
        owners: the sequence of each piece; None likewise.
        first_piece: of each core; None likewise.
        q_length: queries of each sequence before filling up; None where there are `cuts`.
    """

    plan: PagedPlan
    mask: MaskSpec
    q_length: int | None
    lengths: Any
    table: Any = None
    starts: Any = None
    cuts: Any = None
    owners: Any = None
    first_piece: Any = None

    def block(self, core: Scalar, step: Scalar) -> Scalar:
        """Returns the block of queries of a step; the core's last one where its pieces have run out."""
        plan = self.plan
        if self.cuts is None:
            pieces_a_block = plan.tokens if plan.flat else 1
            return (core * plan.steps + step) // pieces_a_block
        last = (core + 1) * (plan.blocks // plan.cores) - 1
        piece = jnp.minimum(self.first_piece[core] + step, plan.blocks + plan.sequences - 1)
        return jnp.minimum(self.cuts[piece] // plan.tokens, last)

    def piece(self, core: Scalar, step: Scalar) -> Piece:
        """Returns a step's piece; without keys where it is none."""
        plan = self.plan
        if self.cuts is None:
            number = core * plan.steps + step
            return self._in_a_row(number)
        number = self.first_piece[core] + step
        number = jnp.minimum(number, plan.blocks + plan.sequences - 1)
        low, high = self.cuts[number], self.cuts[number + 1]
        sequence = self.owners[number]
        known = jnp.clip(sequence, 0, plan.sequences - 1)
        end = self.starts[known + 1]
        own_blocks = plan.blocks // plan.cores
        mine = (low < (core + 1) * own_blocks * plan.tokens) & (self.first_piece[core] + step == number)
        # Tokens that no sequence owns lie before the first start or from the last on.
        owned = mine & (sequence >= 0) & (sequence < plan.sequences)
        high = jnp.where(owned, jnp.minimum(high, end), low)
        return self._with_keys(known, self.block(core, step), low, high, end)

    def _in_a_row(self, number: Scalar) -> Piece:
        plan = self.plan
        if plan.flat:
            return self._with_keys(number, number // plan.tokens, number, number + 1, number + 1)
        blocks_a_row = (plan.length or 0) // plan.tokens
        sequence = number // blocks_a_row
        start = sequence * (plan.length or 0)
        end = start + (self.q_length or 0)
        low = number * plan.tokens
        return self._with_keys(sequence, number, low, jnp.minimum(low + plan.tokens, end), end)

    def _with_keys(self, sequence: Scalar, block: Scalar, low: Scalar, high: Scalar, end: Scalar) -> Piece:
        """Returns the piece whose sequence's queries end at token `end`, with what its mask leaves of the keys."""
        plan, mask = self.plan, self.mask
        length = jnp.clip(self.lengths[sequence], 0, plan.entries * plan.page_size)
        offset = self.lengths[sequence] - end
        lowest, highest = offset + low, offset + high - 1
        bottom, top = jnp.int32(0), length
        left, right = mask.window or (None, None)
        if mask.causal:
            top = jnp.minimum(top, highest + 1)
        if right is not None:
            top = jnp.minimum(top, highest + right + 1)
        if left is not None:
            bottom = jnp.maximum(bottom, lowest - left)
        if mask.chunk is not None:
            bottom = jnp.maximum(bottom, jnp.maximum(lowest, 0) // mask.chunk * mask.chunk)
            top = jnp.minimum(top, (jnp.maximum(highest, 0) // mask.chunk + 1) * mask.chunk)
        some = (low < high) & (bottom < top)
        first = bottom // plan.keys
        stop = jnp.where(some, (top + plan.keys - 1) // plan.keys, first)
        return Piece(sequence, block, low, high, offset, length, first, stop, top)


@dataclasses.dataclass(frozen=True)
class Pages:
    """Pools in device memory, two buffers for each on chip, and a semaphore for each buffer."""

    work: Work
    k_pool: Any
    v_pool: Any
    k_buffer: Any
    v_buffer: Any
    arrived: Any

    def start(self, piece: Piece, block: Scalar, slot: Scalar) -> None:
        """Sends for one block of a piece's keys and values."""

        def one(index: Scalar, carry: None) -> None:
            for copy in self._copies(piece, block, index, slot):
                copy.start()

        jax.lax.fori_loop(0, self._live(piece, block), one, None)

    def wait(self, piece: Piece, block: Scalar, slot: Scalar) -> None:
        """Waits until that block is there."""

        def one(index: Scalar, carry: None) -> None:
            for copy in self._copies(piece, block, index, slot):
                copy.wait()

        jax.lax.fori_loop(0, self._live(piece, block), one, None)

    def blank(self, piece: Piece, block: Scalar, slot: Scalar) -> None:
        """Clears values of the block that no query of the piece needs; those of their last page included.

        They are weighed with zero, and zero times a NaN is NaN: what another sequence left behind, in a page's rest
        or in a buffer, must not reach this one.
        """
        plan = self.work.plan
        first = jnp.clip(piece.last - block * plan.keys, 0, plan.keys)

        def one(index: Scalar, carry: None) -> None:
            page = plan.layout.part(
                self.v_buffer, slot, pl.multiple_of(index * plan.page_size, plan.page_size), plan.page_size
            )
            values = page[...]
            axis = plan.layout.token_axis
            token = index * plan.page_size + jax.lax.broadcasted_iota(jnp.int32, values.shape, axis)
            # In fp32: the vector units of v5e and older select no 16-bit numbers.
            page[...] = jnp.where(token < first, values.astype(jnp.float32), 0.0).astype(values.dtype)

        jax.lax.fori_loop(first // plan.page_size, plan.pages, one, None)

    def _live(self, piece: Piece, block: Scalar) -> Scalar:
        """Returns how many pages of the block hold keys that are needed."""
        plan = self.work.plan
        needed = (piece.last + plan.page_size - 1) // plan.page_size - block * plan.pages
        return jnp.minimum(needed, plan.pages)

    def _copies(self, piece: Piece, block: Scalar, index: Scalar, slot: Scalar) -> list[Any]:
        """Returns the copies of page `index` of a block, of keys and of values."""
        plan, table = self.work.plan, self.work.table
        size = plan.page_size
        entry = block * plan.pages + index
        place = pl.multiple_of(index * size, size)
        start: Scalar = 0
        if table is None:
            page, start = piece.sequence, pl.multiple_of(entry * size, size)
        else:
            # A table's entry outside of the pool would read another array's memory: clamped, it reads a wrong page.
            page = jnp.clip(table[piece.sequence * plan.entries + entry], 0, self.k_pool.shape[0] - 1)
        return [
            pltpu.make_async_copy(
                plan.layout.part(pool, page, start, size),
                plan.layout.part(buffer, slot, place, size),
                self.arrived.at[slot, which],
            )
            for which, (pool, buffer) in enumerate(((self.k_pool, self.k_buffer), (self.v_pool, self.v_buffer)))
        ]
