"""What a model will see of a data source: rows segment by segment, and figures over a sample of them."""

import dataclasses
import hashlib
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from kanawa.contracts.data import DataSource
from kanawa.errors import UsageError

from kanawa_runtime.data.mixture import Mixture
from kanawa_runtime.data.packed import PackedSource

#: Examples that are compared for duplicates; more would hold their hashes for minutes.
_MOST_EXAMPLES = 1_000_000


class Part(NamedTuple):
    """Neighbouring tokens of a segment that are all learned, or all masked."""

    learned: bool
    tokens: int
    text: str


class Segment(NamedTuple):
    """One document's part of a row. Its first part is what the first target is predicted from."""

    number: int
    tokens: int
    parts: tuple[Part, ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """A row: where it comes from, its segments, and how many positions are padding."""

    index: int
    source: str
    segments: tuple[Segment, ...]
    padding: int


@dataclasses.dataclass(frozen=True)
class Figures:
    """Sums over a sample of rows; `lengths` are those of segments, `duplicates` counts examples equal to another.

    `examples` were compared for `duplicates`: those of the whole split where the source packs examples, up to a
    million, else the segments of the sample.
    """

    rows: int
    positions: int
    filled: int
    learned: int
    lengths: tuple[int, ...]
    rows_by_source: dict[str, int]
    tokens_by_source: dict[str, int]
    examples: int
    duplicates: int

    @property
    def efficiency(self) -> float:
        """The share of positions that aren't padding."""
        return self.filled / max(1, self.positions)

    def as_json(self) -> dict[str, Any]:
        """Returns the figures; keys are added, never renamed."""
        lengths = np.asarray(self.lengths or (0,))
        return {
            "rows": self.rows,
            "positions": self.positions,
            "packing_efficiency": self.efficiency,
            "learned_share": self.learned / max(1, self.filled),
            "segments_per_row": len(self.lengths) / max(1, self.rows),
            "segment_lengths": {
                "mean": float(lengths.mean()),
                **{f"p{p}": int(np.percentile(lengths, p)) for p in (5, 50, 95)},
                "longest": int(lengths.max()),
            },
            "length_histogram": [list(bar) for bar in histogram(self.lengths)],
            "rows_by_source": self.rows_by_source,
            "tokens_by_source": self.tokens_by_source,
            "examples_compared": self.examples,
            "exact_duplicates": self.duplicates,
        }


def inspected_row(source: DataSource, index: int) -> Row:
    """Returns row `index`, decoded; ids in place of text where the source has no tokenizer."""
    row = _tokens_of(source, index)
    segments = []
    for number in _segments_of(row):
        here = np.flatnonzero(row["segment_ids"] == number)
        ids = np.concatenate([row["input_ids"][here[:1]], row["target_ids"][here]])
        learned = np.concatenate([[False], row["loss_weights"][here] > 0])
        cuts = [0, *(np.flatnonzero(np.diff(learned.astype(np.int8))) + 1).tolist(), len(ids)]
        spans = zip(cuts[:-1], cuts[1:], strict=True)
        parts = tuple(Part(bool(learned[a]), b - a, _text(source, ids[a:b].tolist())) for a, b in spans)
        segments.append(Segment(number, len(here), parts))
    name = str(source.source_names[int(row["sources"].argmax())]) if source.source_names else ""
    return Row(index, name, tuple(segments), int(np.sum(row["segment_ids"] == 0)))


def figures(source: DataSource, rows: int) -> Figures:
    """Returns figures over the first rows, fewer where the source ends before."""
    end = source.num_rows
    count = rows if end is None else min(rows, end)
    lengths: list[int] = []
    positions = filled = learned = 0
    rows_of, tokens_of, hashes = Counter[str](), Counter[str](), Counter[bytes]()
    for index in range(count):
        row = _tokens_of(source, index)
        segments = row["segment_ids"]
        positions += segments.size
        filled += int(np.sum(segments > 0))
        weighted = int(np.sum(row["loss_weights"] > 0))
        learned += weighted
        for number in _segments_of(row):
            here = segments == number
            lengths.append(int(here.sum()))
            hashes[_hash(row["target_ids"][here])] += 1
        if source.source_names:
            name = source.source_names[int(row["sources"].argmax())]
            rows_of[name] += 1
            tokens_of[name] += weighted
    of_examples = _example_hashes(source)
    compared = hashes if of_examples is None else of_examples
    total = sum(compared.values())
    return Figures(
        count, positions, filled, learned, tuple(lengths), dict(rows_of), dict(tokens_of), total, total - len(compared)
    )


def histogram(lengths: tuple[int, ...], bars: int = 12) -> list[tuple[int, int, int]]:
    """Returns (shortest, longest, count) of bars by powers of two, or of fewer equal widths for a narrow range."""
    if not lengths:
        return []
    values = np.asarray(lengths)
    edges = [1]
    while edges[-1] <= values.max():
        edges.append(edges[-1] * 2)
    counts, _ = np.histogram(values, edges)
    found = [(a, b - 1, int(c)) for a, b, c in zip(edges[:-1], edges[1:], counts, strict=True)]
    first = next((i for i, (_, _, c) in enumerate(found) if c), 0)
    return found[first:][-bars:]


def _tokens_of(source: DataSource, index: int) -> dict[str, np.ndarray]:
    row = dict(source.row(index))
    if "input_ids" not in row or "loss_weights" not in row or "target_ids" not in row:
        message = f"rows of {type(source).__name__} have {', '.join(sorted(row))}: only rows of tokens can be inspected"
        raise UsageError(message)
    row.setdefault("segment_ids", np.ones(row["input_ids"].shape, np.int32))
    return row


def _segments_of(row: dict[str, np.ndarray]) -> list[int]:
    return [int(number) for number in np.unique(row["segment_ids"]) if number > 0]


def _text(source: DataSource, ids: list[int]) -> str:
    tokenizer = source.tokenizer
    if tokenizer is None:
        return " ".join(map(str, ids))
    known = [i for i in ids if i < tokenizer.vocab_size]
    text: str = tokenizer.decode(known)
    return text


def _example_hashes(source: DataSource) -> Counter[bytes] | None:
    """Returns how often each example of a split occurs, over all sources of a mixture; None where there are none."""
    parts = list(source.parts.values()) if isinstance(source, Mixture) else [source]
    packed = [part for part in parts if isinstance(part, PackedSource)]
    if len(packed) != len(parts):
        return None
    found, count = Counter[bytes](), 0
    for part in packed:
        encoded = part.encoded
        for example in range(len(encoded)):
            if count >= _MOST_EXAMPLES:
                return found
            found[_hash(encoded.example(example).ids)] += 1
            count += 1
    return found


def _hash(ids: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(ids, np.int32).tobytes(), digest_size=16).digest()
