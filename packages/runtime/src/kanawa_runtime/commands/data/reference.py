"""Writes records of preferences with what a reference model gives their completions."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from kanawa.cli.arguments import compose_from
from kanawa.cli.output import write, write_json
from kanawa.errors import UsageError
from kanawa.local_path import local_path

from kanawa_runtime.data.preferences.mixture import PairMixture
from kanawa_runtime.data.preferences.reference import DIGEST, MISMATCHED, Segment, sums_digest, weights_digest
from kanawa_runtime.data.preferences.source import JudgedSource, PairedSource
from kanawa_runtime.evaluate.encoding import Scored
from kanawa_runtime.evaluate.likelihood import LikelihoodScorer
from kanawa_runtime.process import prepare_process
from kanawa_runtime.runs.open_run import OpenedRun, open_run
from kanawa_runtime.storage.durable import partial_name

#: Pairs that are scored together.
_PAIRS = 256


def reference(args: argparse.Namespace) -> int:
    """Writes the records of --data with the columns that `reference=precomputed` reads; returns 0."""
    prepare_process()
    out = Path(local_path(args.out, "--out"))
    if out.exists():
        message = f"--out {out} is there already: name a new file"
        raise UsageError(message)
    cfg = compose_from(args).config.data
    if isinstance(cfg, PairMixture.Config):
        message = "--data has weights: write each file's sums by itself, without one, and train on both by weight"
        raise UsageError(message)
    if not isinstance(cfg, PairedSource.Config):
        message = "the data are no preferences: name records of them, --data pairs.jsonl --modify dpo (or kto)"
        raise UsageError(message)
    digest = weights_digest(args.experiment)
    rows: Any = cfg.clone().set(reference_columns=False).build().once(None)
    rows.account()
    opened = open_run(args.experiment, target=args.on, serves=True)
    beside, count = partial_name(out), 0
    try:
        with beside.open("w") as file:
            for record in _records(rows, opened, digest):
                file.write(json.dumps(record, default=str) + "\n")
                count += 1
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)
    figures = {"records": count, "skipped": rows.reading.skipped, "model": digest}
    if args.json:
        write_json({"out": str(out), **figures})
        return 0
    write(f"{count:,} records written to {out}, {figures['skipped']:,} skipped; the reference is {digest}")
    write(
        f"train with --data {out} and reference=precomputed,source={args.experiment} beside the modifier's other fields"
    )
    return 0


def _records(rows: Any, opened: OpenedRun, digest: str) -> Iterator[dict[str, Any]]:
    mesh = opened.environment.mesh
    model: Any = opened.trainer.model
    scorer = LikelihoodScorer(model, opened.environment, multiple=1 if mesh is None else mesh.size)
    for first in range(0, len(rows.encoded), _PAIRS):
        documents = range(first, min(first + _PAIRS, len(rows.encoded)))
        pairs = [rows.pair(document)[:2] for document in documents]
        requests = [(2 * i + half, run) for i, pair in enumerate(pairs) for half in (0, 1) for run in _runs(pair[half])]
        batches = scorer.batches([scored for _, scored in requests])
        found = scorer.score(opened.params, opened.state, batches, len(requests))
        assert found is not None  # nothing cuts it short
        sums = np.zeros(2 * len(pairs))
        np.add.at(sums, [place for place, _ in requests], [one.logprob for one in found])
        for document, pair, both in zip(documents, pairs, sums.reshape(-1, 2).tolist(), strict=True):
            record = {**rows.columns(document), **dict(zip(rows.sum_columns, both, strict=True))}
            if isinstance(rows, JudgedSource):
                record[MISMATCHED] = pair[1].ids[pair[1].weights > 0].tolist()
            yield {**record, DIGEST: sums_digest(digest, *pair)}


def _runs(segment: Segment) -> Iterator[Scored]:
    """Yields each stretch of weighted ids, after all that comes before it."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], segment.weights > 0, [0]])))
    for begin, end in edges.reshape(-1, 2).tolist():
        yield Scored(tuple(segment.ids[:end].tolist()), end - begin)
