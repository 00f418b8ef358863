"""The rows of a step for the device: lines of the scheduler's table, with the progress of each sequence."""

from collections.abc import Sequence as SequenceOf

import numpy as np

from kanawa_runtime.serve.engine.rows import GENERATED, LENGTH, NUM_TOKENS, PAGES, SLOT
from kanawa_runtime.serve.engine.scheduler import Chunk, Scheduler
from kanawa_runtime.serve.engine.sequence import Sequence
from kanawa_runtime.serve.engine.shapes import Shapes, smallest_holding


def packed_rows(rows: list[tuple[Sequence, int]], shapes: Shapes, table: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns the rows of sequences with so many tokens each, and what they need as flags."""
    count, flags, longest = smallest_holding(shapes.batch_sizes, len(rows)), 0, 1
    # Padding rows have a slot of their own.
    at = np.full(count, table.shape[0] - 1)
    facts = np.zeros((count, 3), np.int32)
    for index, (sequence, steps) in enumerate(rows):
        at[index] = sequence.slot
        facts[index] = sequence.computed, steps, sequence.generated
        flags |= sequence.flags
        longest = max(longest, len(sequence.pages))
    packed = table[at, : PAGES + smallest_holding(shapes.page_widths, longest)]
    packed[:, LENGTH], packed[:, NUM_TOKENS], packed[:, GENERATED] = facts.T
    return packed, flags


def packed_chunks(
    chunks: SequenceOf[Chunk], count: int, shapes: Shapes, scheduler: Scheduler, *, after: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns `count` rows for chunks of prompts, and their tokens with so many `after` them; both padded."""
    padding = scheduler.table.shape[0] - 1
    padded = shapes.prefill_sizes[-1] if after else chunks[0].padded
    pages = max(-(-(chunk.start + padded) // scheduler.page_size) for chunk in chunks)
    width = shapes.page_widths[-1] if after else smallest_holding(shapes.page_widths, pages)
    at, facts = np.full(count, padding), np.zeros((count, 3), np.int32)
    ids = np.zeros((count, padded + after), np.int32)
    for index, chunk in enumerate(chunks):
        at[index] = chunk.sequence.slot
        facts[index] = chunk.start, chunk.count, chunk.sequence.generated
        tokens = chunk.sequence.tokens[chunk.start : chunk.start + chunk.count + after]
        ids[index, : len(tokens)] = tokens
    packed = scheduler.table[at, : PAGES + width]
    packed[:, LENGTH], packed[:, NUM_TOKENS], packed[:, GENERATED] = facts.T
    if shapes.in_tiles:
        # Only a prompt's last tile knows the token that follows it.
        packed[: len(chunks), SLOT][[not chunk.is_last for chunk in chunks]] = padding
    return packed, ids
