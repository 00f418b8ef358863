"""Diagonal recurrences that every kernel is asked, and random operands for any problem."""

import dataclasses
from typing import Any

import numpy as np
from kanawa.kernels.diagonal_recurrence import DiagonalRecurrenceProblem, ReferenceDiagonalRecurrence
from kanawa.testing.compare import Examples

from kanawa_kernel_tools.examples.space import Space, as_fields

BASE = DiagonalRecurrenceProblem(batch=2, length=64, channels=8)

#: A row of a 2B recurrent model's training batch.
TYPICAL = DiagonalRecurrenceProblem(batch=1, length=4096, channels=2560)

FEATURES: dict[str, tuple[Any, ...]] = {
    "batch": (2, 1, 8),
    "length": (64, 128, 37, 1),
    "channels": (8, 128, 256, 100),
}


def example_operands(problem: DiagonalRecurrenceProblem, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns random operands; one decay in eight is 0, as at the start of a segment."""
    shape = (problem.batch, problem.length, problem.channels)
    decay = rng.uniform(0.5, 1.0, shape) * (rng.uniform(size=shape) > 1 / 8)
    return {"decay": decay.astype(np.float32), "x": rng.standard_normal(shape).astype(np.float32)}


EXAMPLES = Examples(
    reference=ReferenceDiagonalRecurrence(),
    problems=tuple(dataclasses.replace(BASE, length=length) for length in (64, 37, 1)),
    operands=example_operands,
    space=Space(FEATURES, as_fields(DiagonalRecurrenceProblem)),
    typical=TYPICAL,
)
