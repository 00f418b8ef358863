"""Evaluation on the held-out split, sums divided once on the host; and samples of what the model would write."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np
from kanawa.contracts import DataSource, Environment, Program
from kanawa.kernels import KernelChoice
from kanawa.plugins import component

from kanawa_runtime.data.trigram import ByteTrigram
from kanawa_runtime.train.batches import global_batch, local_rows


class Evaluator:
    """Runs the compiled evaluation step over held-out rows; compiles on first use.

    `on_kernels` then gets the kernels of its operations, which may differ from those of training.
    """

    def __init__(
        self, cfg: Any, program: Program, on_kernels: Callable[[tuple[KernelChoice, ...]], None] = lambda choices: None
    ) -> None:
        self.cfg = cfg
        self.program = program
        self.on_kernels = on_kernels
        self.source: DataSource | None = cfg.seeded_data().build().held_out()
        self._compiled: Any = None

    def evaluate(
        self, params: Any, state: Any, limit: int | None = None, until: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """Returns `loss` in nats a token, `tokens`, and for text `nats_per_byte`, over at most `limit` batches.

        Ends early once `until()` holds after a batch. None without held-out data.
        """
        if self.source is None:
            return None
        if self._compiled is None:
            lowered = self.program.lower()
            self.on_kernels(lowered.kernels)
            self._compiled = lowered.compile()
        abstract = self.program.abstract_args[2]
        rows = local_rows(abstract)
        loader = self.cfg.loader.build(source=self.source, global_batch=self.cfg.batch_size, local_rows=rows)
        total, num_bytes, report = None, 0.0, None
        with contextlib.closing(iter(loader)) as batches:
            for local in itertools.islice(batches, limit):
                report = self._compiled(params, state, global_batch(local, abstract, rows))
                values = np.asarray(report.values, np.float64)
                total = values if total is None else total + values
                num_bytes += self.source.target_bytes(local.target_ids, local.loss_weights) or 0.0
                if until():
                    break
        if report is None or total is None:
            return None
        nats, tokens = report.main_loss(total)
        record = {"loss": nats / max(tokens, 1.0), "tokens": tokens}
        num_bytes = summed_over_hosts(num_bytes)
        if num_bytes:
            record["nats_per_byte"] = nats / num_bytes
        return record


def trigram_nats_per_byte(source: DataSource) -> float | None:
    """Returns the held-out score of a byte-trigram table of the training text; None where the data is no text."""
    read, held_out = source.documents("train"), source.documents("validation")
    if read is None or held_out is None:
        return None
    return ByteTrigram(read).nats_per_byte(list(held_out))


def summed_over_hosts(value: float) -> float:
    """Returns the sum of a number over all processes of the run; every process must call it."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    return float(np.sum(multihost_utils.process_allgather(np.float64(value))))


#: The sampler of this package; it lies above training, and is found in the catalog.
_NAME = "kanawa-runtime:generate"


class Sampler(Protocol):
    """Writes samples of one model."""

    def sample(self, params: Any, state: Any) -> dict[str, str]:
        """Returns the `prompt` and the `text` after it, or an `error`; never raises."""


def sampler_of(prompt: str, model: Any, source: DataSource, environment: Environment) -> Sampler | None:
    """Returns the sampler of an experiment; None without a prompt, and for what writes no text."""
    if not prompt:
        return None
    sampler: Sampler | None = component("samplers", _NAME)(prompt, model, source, environment)
    return sampler
