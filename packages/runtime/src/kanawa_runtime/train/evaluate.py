"""Evaluation on the held-out split, sums divided once on the host; and samples of what the model would write."""

import contextlib
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from kanawa.contracts import (
    Batch,
    DataSource,
    Environment,
    MakesPictures,
    Program,
    ReadsPictures,
    Recognises,
    Transcribes,
)
from kanawa.errors import UsageError
from kanawa.kernels import KernelChoice
from kanawa.plugins import component

from kanawa_runtime.data.trigram import ByteTrigram
from kanawa_runtime.train.batches import bytes_of, global_batch, local_rows, unit_of


class Evaluator:
    """Runs the compiled evaluation step over held-out rows, or over `source`; compiles on first use.

    `named` are further sets of rows, scored beside. `on_kernels` gets the kernels of its operations, which may differ
    from those of training. Raises UsageError for a set whose rows the program can't take.
    """

    def __init__(
        self,
        cfg: Any,
        program: Program,
        on_kernels: Callable[[tuple[KernelChoice, ...]], None] = lambda choices: None,
        *,
        source: DataSource | None = None,
        named: Mapping[str, DataSource] | None = None,
    ) -> None:
        self.cfg = cfg
        self.program = program
        self.on_kernels = on_kernels
        self.source: DataSource | None = cfg.seeded_data().build().held_out() if source is None else source
        self.named = dict(named or {})
        self._compiled: Any = None

    def evaluate(
        self, params: Any, state: Any, limit: int | None = None, until: Callable[[], bool] = lambda: False
    ) -> dict[str, Any] | None:
        """Returns `loss` in nats a token, `tokens`, `sequence_length`, for text `nats_per_byte`, of `limit` batches.

        Of other records a token is a row, or what its weights count, the `unit`; `metrics` are the model's own means.

        Those of the named sets are `sets`, {"name/loss": 2.3}; without held-out data the first of them stands for it.
        Ends early once `until()` holds after a batch. None where there is nothing to evaluate on.
        """
        record = None if self.source is None else self._score(self.source, params, state, limit, until)
        sets: dict[str, Any] = {}
        for name, source in self.named.items():
            score = None if until() else self._score(source, params, state, limit, until)
            if score is not None:
                record = {**score, "data": name} if record is None else record
                sets |= {f"{name}/{key}": value for key, value in score.items()}
        return {**record, "sets": sets} if record is not None and sets else record

    def loss_of(self, items: Mapping[str, Any], batch: Any) -> float:
        """Returns the loss a token of one global batch, with the `params` and `state` of a checkpoint."""
        nats, tokens = self._program()(items["params"], items["state"], batch).main_loss()
        return float(nats / max(tokens, 1.0))

    def _program(self) -> Any:
        if self._compiled is None:
            lowered = self.program.lower()
            self.on_kernels(lowered.kernels)
            self._compiled = lowered.compile()
        return self._compiled

    def _score(
        self, source: DataSource, params: Any, state: Any, limit: int | None, until: Callable[[], bool]
    ) -> dict[str, Any] | None:
        abstract = self.program.abstract_args[2]
        held = [name for name, field in source.fields.items() if field is not None and name != "sources"]
        wanted = [name for name in abstract._fields if getattr(abstract, name) is not None and name != "sources"]
        if held != wanted:
            kind = f"{type(source).__name__} makes rows of {', '.join(held)}; the run's own data those of"
            message = f"{kind} {', '.join(wanted)}: one program evaluates both; name data of the same kind"
            raise UsageError(message)
        program = self._program()
        rows = local_rows(abstract)
        loader = self.cfg.loader.build(source=source, global_batch=self.cfg.batch_size, local_rows=rows)
        total, num_bytes, report = None, 0.0, None
        with contextlib.closing(iter(loader)) as batches:
            for local in itertools.islice(batches, limit):
                if "sources" in abstract._fields:
                    local = _with_columns(local, abstract.sources)  # noqa: PLW2901
                report = program(params, state, global_batch(local, abstract, rows))
                values = np.asarray(report.values, np.float64)
                total = values if total is None else total + values
                num_bytes += bytes_of(source, local) or 0.0
                if until():
                    break
        if report is None or total is None:
            return None
        nats, tokens = report.main_loss(total)
        record: dict[str, Any] = {"loss": nats / max(tokens, 1.0), "tokens": tokens}
        if "input_ids" in source.fields and not unit_of(source):
            record["sequence_length"] = source.config.sequence_length
        record |= report.by_source(source.source_names, total)
        # How often the label or the pair is right says more than the loss does.
        means = report.own_means(total, of_loss=bool(source.class_names) or source.batch is not Batch)
        if means:
            record["metrics"] = means
        record |= unit_of(source)
        num_bytes = summed_over_hosts(num_bytes)
        if num_bytes:
            record["nats_per_byte"] = nats / num_bytes
        return record


def _with_columns(local: Any, sources: Any) -> Any:
    """Returns a batch with as many columns of sources as the program takes; zeros where its own are others."""
    if sources is None:
        return local._replace(sources=None)
    if local.sources is not None and local.sources.shape[1:] == sources.shape[1:]:
        return local
    return local._replace(sources=np.zeros((len(local.input_ids), *sources.shape[1:]), sources.dtype))


def named_sets(cfg: Any, tokenizer_file: Path | None) -> dict[str, DataSource]:
    """Returns the sources of `evaluation.sets`, each read whole, by the run's tokenizer and in its length of rows.

    Raises UsageError for one without an end.
    """
    sources: dict[str, DataSource] = {}
    for name, data in cfg.evaluation.sets.items():
        rows = data.seeded(cfg.seed).set(sequence_length=cfg.data.sequence_length)
        if tokenizer_file is not None:
            rows.set_tokenizer_file(str(tokenizer_file))
        built = rows.build()
        source = built.once() or built.held_out()
        if source is None:
            message = f"evaluation.sets: {name} has neither an end nor rows that are held out, so nothing can be scored"
            raise UsageError(message)
        sources[name] = source
    return sources


def trigram_nats_per_byte(source: DataSource) -> float | None:
    """Returns the held-out score of a byte-trigram table of the training text; None where the data is no text."""
    read, held_out = source.documents("train"), source.documents("validation")
    if read is None or held_out is None:
        return None
    return ByteTrigram(read).nats_per_byte(held_out)


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

    def sample(self, params: Any, state: Any) -> dict[str, Any]:
        """Returns the `prompt` and the `text` after it, or pictures as `media`, or an `error`; never raises."""


def sampler_of(prompt: str, model: Any, source: DataSource, environment: Environment) -> Sampler | None:
    """Returns the sampler of an experiment; None of text without a prompt, and of what can't be shown or played."""
    if not prompt and not isinstance(model, MakesPictures | Recognises | Transcribes | ReadsPictures):
        return None
    sampler: Sampler | None = component("samplers", _NAME, asker="kanawa-runtime")(prompt, model, source, environment)
    return sampler
