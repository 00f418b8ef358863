"""A step on rollouts of unequal lengths: several in a row, where that saves a quarter of the rows or more."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from kanawa.contracts import Program, RolloutBatch

from kanawa_runtime.data.packing import BestFitPacking
from kanawa_runtime.train.gradients import WholeBatch

#: Shorter rows are packed in rows of twice their length, where any two fit: attention costs little over so few keys.
_SHORT = 512
#: A batch takes so many quarters of the tokens of its rows, so that there are three programs at most.
_PARTS = 4


def packable(trainer: Any, step: Program) -> bool:
    """Returns whether a trainer's step can take packed rollouts: they are asked for, and one device has them all.

    Gradients have to be those of the whole batch, whose rows nothing cuts apart.
    """
    rollouts = trainer.config.rollouts
    if rollouts is None or not rollouts.are_packed:
        return False
    batch: RolloutBatch = step.abstract_args[1]
    return batch.input_ids.sharding is None and type(trainer.gradient_strategy) is WholeBatch


class PackedStep:
    """The compiled step `whole`, and those of fewer rows, each compiled by `compiled` at the first batch that fits it.

    The choice follows from the batch alone, so that a resumed run takes the same program.
    """

    def __init__(self, step: Program, whole: Any, compiled: Callable[[Program], Any]) -> None:
        self._step, self._whole, self._compile = step, whole, compiled
        self._programs: dict[int, Any] = {}

    def __call__(self, before: Any, batch: RolloutBatch) -> Any:
        """Returns the state after the update, and its report; `before` is donated."""
        packed = packed_rollouts(batch)
        if packed is None:
            return self._whole(before, batch)
        rows = packed.input_ids.shape[0]
        if rows not in self._programs:
            abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), packed)
            arguments = (self._step.abstract_args[0], abstract)
            self._programs[rows] = self._compile(dataclasses.replace(self._step, abstract_args=arguments))
        return self._programs[rows](before, packed)

    def memory_analysis(self) -> Any:
        """Returns the compiler's account of the program for whole rows, the largest."""
        return self._whole.memory_analysis()


def packed_rollouts(batch: RolloutBatch) -> RolloutBatch | None:
    """Returns the batch with several rollouts in a row; None where that would save less than a quarter of the rows."""
    segments = np.asarray(batch.segment_ids)
    count, length = segments.shape
    lengths = (segments > 0).sum(1)
    capacity = 2 * length if length < _SHORT else length
    most = count * length // capacity
    # Every length is at least 1: a rollout has a prompt.
    rows = BestFitPacking.Config().build().pack(lengths.astype(np.int64), capacity)
    parts = -(-rows.num_rows * _PARTS // most) if most else _PARTS
    if parts >= _PARTS:
        return None
    height = -(-most * parts // _PARTS)
    # Pieces are whole rollouts, in the order of their rows.
    starts = np.concatenate([[0], np.cumsum(rows.length)[:-1]])
    of_row = np.repeat(np.arange(rows.num_rows), np.diff(rows.row_offsets))
    begins = of_row * capacity + starts - starts[rows.row_offsets[:-1]][of_row]
    first = np.empty(count, np.int64)
    first[rows.item] = begins
    at = np.arange(length)
    places = np.where(at < lengths[:, None], first[:, None] + at, -1).astype(np.int32)
    number = np.empty(count, np.int32)
    number[rows.item] = np.arange(count) - rows.row_offsets[:-1][of_row] + 1
    there = places >= 0

    def placed(values: Any) -> Any:
        if values is None:
            return None
        values = np.asarray(values)
        flat = np.zeros(height * capacity, values.dtype)
        flat[places[there]] = values[there]
        return flat.reshape(height, capacity)

    moved: dict[str, Any] = {name: placed(values) for name, values in batch._asdict().items()}
    numbers = placed(np.broadcast_to(number[:, None], segments.shape).astype(segments.dtype))
    return RolloutBatch(**{**moved, "segment_ids": numbers, "places": places})
