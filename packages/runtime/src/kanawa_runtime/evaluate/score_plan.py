"""Requests in rows: several to a row in segments of their own, and each beginning that requests share once."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kanawa_runtime.evaluate.encoding import Scored

#: The shortest row: shorter requests share one.
_MIN_ROW = 128
#: Places to score are padded to a multiple of this, so that few programs are compiled.
_PLACES = 16


class ScoreBatch(NamedTuple):
    """Rows of packed requests, int32: what is read [rows, length], and the places that are scored [rows, places].

    `requests` says whose token each place holds; -1 is padding.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    segment_ids: np.ndarray
    places: np.ndarray
    targets: np.ndarray
    requests: np.ndarray


class _Segment(NamedTuple):
    """Ids that are read once, and the (place, target, request) scored in them."""

    ids: tuple[int, ...]
    scored: list[tuple[int, int, int]]


def score_batches(
    requests: Sequence[Scored], *, tokens: int, logits: int, vocab_size: int, multiple: int = 1
) -> list[ScoreBatch]:
    """Returns the rows of all requests in batches of at most about `tokens` tokens and `logits` logits.

    A request that another one begins with is read as a part of it. Rows of a batch are a multiple of `multiple`, the
    rest empty. Rows have lengths 128, 256, 512, …, each the least that takes its requests.
    """
    by_length: dict[int, list[_Segment]] = {}
    for segment in _segments(requests):
        length = max(_MIN_ROW, 1 << (len(segment.ids) - 1).bit_length())
        by_length.setdefault(length, []).append(segment)
    batches = []
    for length, segments in sorted(by_length.items()):
        rows = _packed(segments, length)
        places = max(sum(len(segment.scored) for segment in row) for row in rows)
        places = min(-(-places // _PLACES) * _PLACES, max(places, length))
        most = max(1, min(tokens // length, logits // (places * vocab_size)))
        count = min(-(-most // multiple) * multiple, -(-len(rows) // multiple) * multiple)
        batches += [_batch(rows[start : start + count], count, length, places) for start in range(0, len(rows), count)]
    return batches


def _segments(requests: Sequence[Scored]) -> Iterator[_Segment]:
    """Yields what has to be read: sorted, a request that begins others stands right before one of them."""
    inputs = sorted(range(len(requests)), key=lambda index: requests[index].ids[:-1])
    current: _Segment | None = None
    for index in reversed(inputs):
        ids, count = requests[index]
        read = ids[:-1]
        if current is None or current.ids[: len(read)] != read:
            if current is not None:
                yield current
            current = _Segment(read, [])
        first = len(read) - count
        current.scored.extend((place, ids[place + 1], index) for place in range(first, len(read)))
    if current is not None:
        yield current


def _packed(segments: Sequence[_Segment], length: int) -> list[list[_Segment]]:
    """Returns rows, longest segments first, each in the fullest row that has room for it (best fit decreasing)."""
    by_room: list[list[list[_Segment]]] = [[] for _ in range(length + 1)]
    rows: list[list[_Segment]] = []
    for segment in sorted(segments, key=lambda one: (-len(one.ids), one.ids)):
        size = len(segment.ids)
        room = next((room for room in range(size, length) if by_room[room]), None)
        if room is None:
            row: list[_Segment] = []
            rows.append(row)
            room = length
        else:
            row = by_room[room].pop()
        row.append(segment)
        by_room[room - size].append(row)
    return rows


def _batch(rows: Sequence[Sequence[_Segment]], count: int, length: int, places: int) -> ScoreBatch:
    ids, positions, segments = (np.zeros((count, length), np.int32) for _ in range(3))
    where, targets = (np.zeros((count, places), np.int32) for _ in range(2))
    requests = np.full((count, places), -1, np.int32)
    for row, packed in enumerate(rows):
        start = filled = 0
        for number, segment in enumerate(packed, 1):
            end = start + len(segment.ids)
            ids[row, start:end], segments[row, start:end] = segment.ids, number
            positions[row, start:end] = np.arange(len(segment.ids))
            for place, target, request in segment.scored:
                where[row, filled], targets[row, filled], requests[row, filled] = start + place, target, request
                filled += 1
            start = end
    return ScoreBatch(ids, positions, segments, where, targets, requests)
