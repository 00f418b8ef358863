"""Where the pieces of arrays lie: one index a process, whose SHA-256 the manifest holds.

A piece is a box of one array, in C order, little-endian, as it lay on a device. Its bytes are one or more extents of
volumes, files of a bounded size: object stores take bounded objects, and many small ones are slow.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

Box = tuple[slice, ...]


@dataclasses.dataclass(frozen=True)
class Extent:
    """Bytes of a volume with their CRC-32, which says which file is damaged; the array's digest proves the rest."""

    volume: int
    offset: int
    size: int
    crc32: int


@dataclasses.dataclass(frozen=True)
class Piece:
    """A box of an array: where it starts, its shape, and its bytes."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    extents: tuple[Extent, ...]

    def overlap(self, box: Box) -> tuple[Box, Box] | None:
        """Returns the shared part as slices of this piece and slices of `box`; None without one."""
        mine, others = [], []
        for start, size, wanted in zip(self.start, self.shape, box, strict=True):
            low, high = max(start, wanted.start), min(start + size, wanted.stop)
            if low >= high:
                return None
            mine.append(slice(low - start, high - start))
            others.append(slice(low - wanted.start, high - wanted.start))
        return tuple(mine), tuple(others)


@dataclasses.dataclass(frozen=True)
class Part:
    """What one process wrote: the names of its volumes, and its pieces by item and path."""

    volumes: tuple[str, ...]
    pieces: Mapping[str, Mapping[str, tuple[Piece, ...]]]


def encoded(part: Part) -> bytes:
    """Returns a part's index as it is written: extents as [volume, offset, size, crc32], for there are many."""
    pieces = {
        item: {
            path: [[p.start, p.shape, [dataclasses.astuple(e) for e in p.extents]] for p in boxes]
            for path, boxes in arrays.items()
        }
        for item, arrays in part.pieces.items()
    }
    return json.dumps({"volumes": part.volumes, "pieces": pieces}).encode()


def decoded(data: bytes) -> Part:
    """Returns the part of an index; raises what JSON of another form raises."""
    body: Any = json.loads(data)
    pieces = {
        item: {
            path: tuple(
                Piece(tuple(start), tuple(shape), tuple(Extent(*e) for e in ext)) for start, shape, ext in boxes
            )
            for path, boxes in arrays.items()
        }
        for item, arrays in body["pieces"].items()
    }
    return Part(tuple(body["volumes"]), pieces)
