"""Diagonal recurrences that every kernel is asked, and random operands for any problem."""

import dataclasses

import numpy as np

from kanawa.kernels.compare import Examples
from kanawa.kernels.diagonal_recurrence.problem import DiagonalRecurrenceProblem
from kanawa.kernels.diagonal_recurrence.reference import ReferenceDiagonalRecurrence

BASE = DiagonalRecurrenceProblem(batch=2, length=64, channels=8)


def example_operands(problem: DiagonalRecurrenceProblem, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns random operands; one decay in eight is 0, as at the start of a segment."""
    shape = (problem.batch, problem.length, problem.channels)
    decay = rng.uniform(0.5, 1.0, shape) * (rng.uniform(size=shape) > 1 / 8)
    return {"decay": decay.astype(np.float32), "x": rng.standard_normal(shape).astype(np.float32)}


EXAMPLES = Examples(
    reference=ReferenceDiagonalRecurrence(),
    problems=tuple(dataclasses.replace(BASE, length=length) for length in (64, 37, 1)),
    operands=example_operands,
)
