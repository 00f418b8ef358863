"""The coordinate check of muP: how activations, and what training changes of them, grow with a model's width."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kanawa.contracts.program import Environment
from kanawa.module import functional


def coordinate_slopes(
    experiment: Callable[[int], Any], widths: Iterable[int], batches: Iterable[Any], emit: tuple[str, ...]
) -> dict[str, tuple[float, float]]:
    """Returns {emitted path: (slope at the start, slope of the change)} of models trained on the same batches.

    `experiment(width)` is a frozen config of an experiment, which builds a workload with `init` and `train_step`. A
    slope is that of log RMS against log width, least squares: in muP none is above 0, that of a hidden stream is 0,
    and logits may fall at the start, while their change keeps its size (Yang et al. 2022, arXiv:2203.03466, D.1).
    """
    sizes, batches = sorted(widths), list(batches)
    figures = [_root_mean_squares(experiment(width), batches, emit) for width in sizes]
    logs = np.log(np.asarray(sizes, np.float64))

    def slope(values: list[float]) -> float:
        return float(np.polyfit(logs, [math.log(max(value, 1e-30)) for value in values], 1)[0])

    return {
        path: (slope([each[path][0] for each in figures]), slope([each[path][1] for each in figures]))
        for path in figures[0]
    }


def _root_mean_squares(cfg: Any, batches: list[Any], emit: tuple[str, ...]) -> Mapping[str, tuple[float, float]]:
    """Returns the RMS of each emitted value before training, and of its change over the batches, on the first batch."""
    workload = cfg.build()
    programs = workload.programs(Environment())
    state, step = programs["init"].lower().compile()(), programs["train_step"].lower().compile()
    look = jax.jit(lambda params, held: functional(workload.model)(params, held, batches[0], emit=emit)[1].emitted)
    before = look(state.params, state.state)
    for batch in batches:
        state, _ = step(state, batch)
    after = look(state.params, state.state)
    return {path: (_rms(value), _rms(after[path] - value)) for path, value in before.items()}


def _rms(value: jax.Array) -> float:
    return float(jnp.sqrt(jnp.mean(jnp.square(value.astype(jnp.float32)))))
