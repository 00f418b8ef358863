"""Rows that the policy wrote, as arrays to train on, and as text for a checkpoint."""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from kanawa.contracts import RolloutBatch

from kanawa_runtime.rollouts.sampler import Drawn


class Written(NamedTuple):
    """This process's rows of a batch, with the figures of the whole batch, and the first row of data it was made of."""

    batch: RolloutBatch
    figures: dict[str, Any]
    first_row: int

    def saved(self, place: int) -> dict[str, Any]:
        """Returns this as JSON, exactly; `place` is that of the first row in the batch."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **{name: x for name, x in self.batch._asdict().items() if x is not None})
        arrays = base64.b85encode(buffer.getvalue()).decode()
        return {"arrays": arrays, "figures": self.figures, "first_row": self.first_row, "place": place}


def restored_rows(saved: Sequence[Mapping[str, Any]], rows: range) -> Written:
    """Returns the rows `rows` of a batch from what all processes saved of it, however many they were."""
    parts: dict[int, dict[str, np.ndarray]] = {}
    for part in saved:
        with np.load(io.BytesIO(base64.b85decode(part["arrays"]))) as arrays:
            parts[int(part["place"])] = dict(arrays)
    whole: dict[str, list[np.ndarray]] = {}
    at = 0
    for place, arrays in sorted(parts.items()):
        for name, array in arrays.items():
            # Processes that share devices along the batch have saved the same rows.
            whole.setdefault(name, []).append(array[max(at - place, 0) :])
        at = max(at, place + len(next(iter(arrays.values()))))
    joined: dict[str, Any] = {name: np.concatenate(x)[rows.start : rows.stop] for name, x in whole.items()}
    return Written(RolloutBatch(**joined), dict(saved[0]["figures"]), int(saved[0]["first_row"]))


def laid_out(
    prompts: Sequence[tuple[int, ...]], drawn: Sequence[Drawn], advantages: np.ndarray, counts: np.ndarray, length: int
) -> RolloutBatch:
    """Returns rows of `length`; those whose `counts` is 0 weigh nothing."""
    shape = len(prompts), length
    ids, targets, positions, segments = (np.zeros(shape, np.int32) for _ in range(4))
    weights, gains, sampled = (np.zeros(shape, np.float32) for _ in range(3))
    positions[:] = np.arange(length)
    for row, (prompt, mine) in enumerate(zip(prompts, drawn, strict=True)):
        tokens = [*prompt, *mine.ids]
        written = slice(len(prompt) - 1, len(tokens) - 1)
        by_policy = np.ones(len(mine.ids)) if mine.mask is None else np.asarray(mine.mask, np.float32)
        ids[row, : len(tokens) - 1], targets[row, : len(tokens) - 1] = tokens[:-1], tokens[1:]
        segments[row, : len(tokens) - 1] = 1
        weights[row, written] = by_policy * counts[row]
        gains[row, written], sampled[row, written] = by_policy * advantages[row], by_policy * mine.logprobs
    rows: list[Any] = [ids, targets, positions, segments, weights, gains, sampled]
    return RolloutBatch(*rows)
