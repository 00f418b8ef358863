"""Rows of several sources by weight, in exact shares; weights may change by row, by step and at a restart."""

import functools
import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from kanawa.config import REQUIRED, Config, Size, to_json
from kanawa.contracts.data import DataSource, Split
from kanawa.errors import did_you_mean

from kanawa_runtime.data.errors import RowError
from kanawa_runtime.data.mixing import Exhausted, MixedOrder, Phase, exact, phases_after
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer

#: How far from 1 the sum of weights may be: thirds are written with four digits.
_TOLERANCE = Fraction(1, 1000)


class WeightChange(Config):
    """Weights from a row, or from a step's first row, on; a step is one batch, counted from 0."""

    weights: dict[str, float] = REQUIRED
    from_row: Size | None = None
    from_step: Size | None = None

    def check(self) -> list[str]:
        """Returns what is wrong with the place."""
        if (self.from_row is None) == (self.from_step is None):
            return ["expected either from_row or from_step"]
        return []


class Mixture(DataSource):
    """Rows of named sources: each row belongs to one source, and `sources` of the batch says to which.

    After n rows a source has given n times its weight, to a row or two, whatever the number of hosts. Weights may
    change: by `schedule`, and between two attempts at a run, from the first row that wasn't trained on. Each source's
    rows come in their own order, none twice and none left out, across every change. `weights` None takes each source
    once through, evenly spread; all of them need an end then.
    """

    #: What `schedule` holds.
    WeightChange: ClassVar = WeightChange

    class Config(DataSource.Config):
        PLACEMENT = ("weights", "schedule")

        sources: dict[str, DataSource.Config] = REQUIRED
        weights: dict[str, float] | None = None
        schedule: tuple[WeightChange, ...] = ()
        #: At most so many epochs of these sources; others repeat as their own config says.
        epochs: dict[str, Size] = {}
        #: What a source without rows left does: end the data, or leave its weight to the others.
        when_exhausted: Exhausted = "stop"
        #: False spreads the sources evenly. The order inside a source is its own config's.
        shuffle: bool = True
        #: Rows within which the sources are shuffled; part of the row order.
        block_rows: Size = 256
        #: Names that `sources` of a batch tells apart; () are those of `sources`.
        columns: tuple[str, ...] = ()

        def check(self) -> list[str]:
            """Returns what is wrong with sources, weights, schedule and epochs."""
            if not self.sources:
                return ["sources is empty, expected at least one"]
            problems = weight_problems("weights", self.weights, self.sources)
            if self.schedule and self.weights is None:
                problems.append("schedule changes weights, but weights is None: give those of row 0")
            for number, change in enumerate(self.schedule):
                problems += weight_problems(f"schedule[{number}].weights", change.weights, self.sources)
            for kind in ("from_row", "from_step"):
                places = [place for change in self.schedule if (place := getattr(change, kind)) is not None]
                if places != sorted(set(places)):
                    problems.append(f"schedule has {kind} {places}, expected each later than the one before")
            for name in self.epochs:
                if name not in self.sources:
                    problems.append(f"epochs has {name!r}, which is no source{did_you_mean(name, self.sources)}")
                elif "epochs" not in self.sources[name].fields():
                    source = type(self.sources[name])._target
                    kind_name = getattr(source, "__name__", source)
                    problems.append(f"epochs has {name!r}, but {kind_name} can't count epochs")
            problems += [f"columns lacks the source {name!r}" for name in self.sources if name not in self.named()]
            return problems

        def named(self) -> tuple[str, ...]:
            """Returns the names that `sources` of a batch tells apart."""
            return self.columns or tuple(self.sources)

        def set_tokenizer_file(self, file: str) -> None:
            """Sets the tokenizer of every source."""
            for source in self.sources.values():
                source.set_tokenizer_file(file)

        def set_batch_rows(self, rows: int) -> None:
            """Turns steps of the schedule into rows."""
            for change in self.schedule:
                if change.from_step is not None:
                    change.set(from_row=change.from_step * rows, from_step=None)

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._past: list[Phase] = []
        self._resumed_at = 0

    # --- sources -------------------------------------------------------------------------------------------------

    @functools.cached_property
    def parts(self) -> dict[str, DataSource]:
        """The sources by name, not yet read. Those of text share a tokenizer: a saved one, or one learned from all."""
        configs = {
            n: s.clone().set(sequence_length=self.config.sequence_length) for n, s in self.config.sources.items()
        }
        for name, epochs in self.config.epochs.items():
            configs[name].set(epochs=epochs)
        saved = [file for cfg in configs.values() if (file := getattr(cfg, "tokenizer_file", None)) is not None]
        parts: dict[str, DataSource] = {}
        for name, cfg in configs.items():
            if saved and getattr(cfg, "tokenizer_file", "") is None:
                cfg.set_tokenizer_file(saved[0])
            parts[name] = cfg.build()
            if parts[name].batch is not self.batch:
                kind = f"{type(self).__name__} takes those of {self.batch.__name__}"
                message = f"source {name!r} makes rows of {parts[name].batch.__name__}; {kind}"
                raise RowError(message)
        texts = [source for source in parts.values() if isinstance(source, TextSource)]
        for name, source in parts.items():
            if isinstance(source, TextSource) and self.config.weights:
                source.encodes_early = self.config.weights[name] > 0
        for text in texts:
            text.learned_from = tuple(other.corpus for other in texts)
        return parts

    @functools.cached_property
    def _ordered(self) -> tuple[DataSource, ...]:
        return tuple(self.parts.values())

    @property
    def source_names(self) -> tuple[str, ...]:
        """The names that `sources` of a batch tells apart, in order."""
        names: tuple[str, ...] = self.config.named()
        return names

    @property
    def packed(self) -> bool:
        """Whether any source's rows hold packed segments."""
        return any(source.packed for source in self._ordered)

    @property
    def vocab_size(self) -> int:
        """The largest of the sources'."""
        return max(source.vocab_size for source in self._ordered)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The one tokenizer of all sources of text; raises RowError where they have several."""
        found: dict[str, Any] = {n: s.tokenizer for n, s in self.parts.items() if s.tokenizer is not None}
        digests = {name: tokenizer.digest for name, tokenizer in found.items()}
        if len(set(digests.values())) > 1:
            listed = ", ".join(f"{name} {digest[:12]}" for name, digest in digests.items())
            message = (
                f"the sources are read by different tokenizers ({listed}): name one, --set data.tokenizer_file=FILE"
            )
            raise RowError(message)
        return next(iter(found.values()), None)

    # --- order ---------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _planned(self) -> list[Phase]:
        cfg = self.config
        names = tuple(self.parts)
        if cfg.weights is None:
            rows = {name: source.num_rows for name, source in self.parts.items()}
            endless = [name for name, count in rows.items() if count is None]
            if endless:
                message = f"weights is None, but the source {endless[0]!r} has no end: give weights, or its epochs"
                raise RowError(message)
            return [Phase(0, tuple(Fraction(rows[name] or 0) for name in names), "start")]
        phases = [Phase(0, exact(cfg.weights, names), "start")]
        for change in cfg.schedule:
            if change.from_row is None:
                message = f"from_step={change.from_step} has no meaning without batches: give from_row"
                raise RowError(message)
            if change.from_row <= phases[-1].first_row:
                message = f"schedule: row {change.from_row} comes after row {phases[-1].first_row}; put them in order"
                raise RowError(message)
            phases.append(Phase(change.from_row, exact(change.weights, names), "schedule"))
        return phases

    @functools.cached_property
    def order(self) -> MixedOrder:
        """Which source each row comes from."""
        cfg = self.config
        rows = functools.cache(lambda source: self._ordered[source].num_rows)
        drops: Exhausted = "drop" if cfg.weights is None else cfg.when_exhausted
        phases = phases_after(self._resumed_at, self._past, self._planned)
        return MixedOrder(
            phases, rows, block_rows=cfg.block_rows, seed=cfg.seed, shuffle=cfg.shuffle, when_exhausted=drops
        )

    @property
    def num_rows(self) -> int | None:
        """Rows until a source is exhausted, or all are; None where none is ever."""
        return self.order.num_rows

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`: a source's row, and `sources`, 1 at its column."""
        source, inner = self.order.at(index)
        row = dict(self._ordered[source].row(inner))
        length = self.config.sequence_length
        if self.packed:
            row.setdefault("positions", np.arange(length, dtype=np.int32))
            row.setdefault("segment_ids", np.ones(length, np.int32))
        column = self.source_names.index(tuple(self.parts)[source])
        row["sources"] = np.eye(1, len(self.source_names), column, dtype=np.float32)[0]
        return row

    def account(self) -> Mapping[str, Any]:
        """Returns what became of each source's data, by name."""
        accounts = {name: source.account() for name, source in self.parts.items()}
        return {name: account for name, account in accounts.items() if account}

    def record(self, index: int) -> Mapping[str, Any]:
        """Returns the record behind a row of a source, and the source's name as `source` unless that is a column."""
        source, inner = self.order.at(index)
        return {"source": tuple(self.parts)[source], **self._ordered[source].record(inner)}

    def check_start(self, folder: Path | None) -> None:
        """Asks every source."""
        for source in self._ordered:
            source.check_start(folder)

    # --- across attempts -----------------------------------------------------------------------------------------

    def saved(self, row: int) -> dict[str, Any]:
        """Returns the weights that applied before a row, and how many rows each source has given by then."""
        names = tuple(self.parts)
        past = [phase for phase in phases_after(self._resumed_at, self._past, self._planned) if phase.first_row < row]
        history = [
            {"row": p.first_row, "weights": dict(zip(names, map(str, p.weights), strict=True)), "reason": p.reason}
            for p in past
        ]
        return {"weights": history, "taken": dict(zip(names, self.order.taken(row), strict=True))}

    def resume(self, row: int, saved: Mapping[str, Any]) -> None:
        """Takes what `saved` returned at this row: the config's weights apply from there on."""
        self._past = [
            Phase(past["row"], tuple(Fraction(past["weights"][name]) for name in self.parts), past["reason"])
            for past in saved.get("weights", ())
        ]
        self._resumed_at = row
        vars(self).pop("order", None)
        taken = dict(zip(self.parts, self.order.taken(row), strict=True))
        if "taken" in saved and saved["taken"] != taken:
            message = f"by row {row} the sources had given {saved['taken']}, but would now have given {taken}"
            raise RowError(message)

    def changes(self, first: int, end: int) -> list[dict[str, Any]]:
        """Returns where weights change in these rows: the row, all weights by then, the reason, exhausted sources."""
        names = tuple(self.parts)
        return [
            {
                "row": span.first_row,
                "reason": span.reason,
                "weights": {n: _share(w, span.shares.weights) for n, w in zip(names, span.shares.weights, strict=True)},
                "exhausted": [names[source] for source in span.dropped],
            }
            for span in self.order.spans
            if first <= span.first_row < end and span.reason != "start"
        ]

    # --- the rest of the contract ----------------------------------------------------------------------------------

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) over the sources and every setting of the row order but the weights, which may change."""
        settings = to_json(self.config)
        for field in ("sources", "weights", "schedule", "columns"):
            settings.pop(field, None)
        parts = [{name: source.digest for name, source in self.parts.items()}, settings]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def held_out(self) -> "Mixture | None":
        """Returns the held-out rows of all sources, once through, evenly spread; None where no source has any."""
        return self._once_through({name: source.held_out() for name, source in self.parts.items()})

    def once(self, split: Split | None = None) -> "Mixture | None":
        """Returns the rows of a split of all sources, or all rows, once through; None for a source without end."""
        rows = {name: source.once(split) for name, source in self.parts.items()}
        return None if None in rows.values() else self._once_through(rows)

    def _once_through(self, rows: Mapping[str, DataSource | None]) -> "Mixture | None":
        configs = {name: source.config for name, source in rows.items() if source is not None}
        if not configs:
            return None
        fields: dict[str, Any] = {"epochs": {}, "schedule": (), "weights": None, "shuffle": False}
        cfg = self.config.clone().set(sources=configs, columns=self.source_names, **fields)
        mixture: Mixture = cfg.build()
        for name, source in rows.items():
            if source is not None:
                # As they are: a tokenizer that was learned in common isn't in their configs.
                mixture.__dict__.setdefault("parts", {})[name] = source
        return mixture

    def documents(self, split: Split) -> Iterable[bytes] | None:
        """Returns the text behind a split of every source, one after the other; None where one has none."""
        texts = [source.documents(split) for source in self._ordered]
        read = [text for text in texts if text is not None]
        return itertools.chain.from_iterable(read) if len(read) == len(texts) else None

    def target_bytes(self, target_ids: np.ndarray, loss_weights: np.ndarray) -> float | None:
        """Returns how many bytes the weighted targets cover; None where the sources don't agree."""
        if not self._agree_on_bytes:
            return None
        return self._ordered[0].target_bytes(target_ids, loss_weights)

    @functools.cached_property
    def _agree_on_bytes(self) -> bool:
        row = self._ordered[0].row(0)
        each = [source.target_bytes(row["target_ids"], row["loss_weights"]) for source in self._ordered]
        return None not in each and all(math.isclose(count or 0.0, each[0] or 0.0, rel_tol=1e-9) for count in each)


def weight_problems(what: str, weights: Mapping[str, float] | None, names: Iterable[str]) -> list[str]:
    """Returns what is wrong with weights by name, one sentence each; nothing with None."""
    if weights is None:
        return []
    names = list(names)
    problems = [f"{what} has {n!r}, which is no source{did_you_mean(n, names)}" for n in weights if n not in names]
    problems += [f"{what} lacks {name!r}: 0 leaves a source out" for name in names if name not in weights]
    bad = {name: weight for name, weight in weights.items() if not math.isfinite(weight) or weight < 0}
    problems += [f"{what} of {name!r} is {weight}, expected 0 to 1" for name, weight in bad.items()]
    if problems:
        return problems
    total = sum(exact(weights, names))
    if total == 0:
        return [f"{what} are all 0, expected a sum of 1"]
    if abs(total - 1) > _TOLERANCE:
        shares = ", ".join(f"{name}={float(Fraction(repr(weights[name])) / total):.4g}" for name in names)
        return [f"{what} sum to {float(total):g}, expected 1; in these proportions: {shares}"]
    return []


def _share(weight: Fraction, weights: Sequence[Fraction]) -> float:
    return float(weight / sum(weights))
