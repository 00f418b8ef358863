"""Copying this process's pieces off the devices, and writing them while training continues."""

import dataclasses
import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from kanawa_runtime.checkpoint.manifest import PartEntry
from kanawa_runtime.checkpoint.shards.index import Extent, Part, Piece, encoded

#: Volumes on their way at once; each holds at most a volume's bytes beside the snapshot.
_WRITERS = 4
_COPIERS = 4


@dataclasses.dataclass(frozen=True)
class HostPiece:
    """A piece in host memory, of this process alone."""

    item: str
    path: str
    start: tuple[int, ...]
    array: np.ndarray


def snapshot(trees: Mapping[str, Mapping[str, jax.Array]]) -> list[HostPiece]:
    """Returns copies of the pieces that are this process's to write; the arrays may be donated afterwards.

    A box that several devices hold is written by the one with its first replica.
    """
    shards = [
        (item, path, shard)
        for item, leaves in trees.items()
        for path, leaf in leaves.items()
        if leaf.size
        for shard in leaf.addressable_shards
        if shard.replica_id == 0
    ]
    # All transfers are under way before the first is waited for.
    for _, _, shard in shards:
        shard.data.copy_to_host_async()
    # Several copies at once: a single processor doesn't fill the memory's bandwidth.
    with ThreadPoolExecutor(_COPIERS, thread_name_prefix="copy") as pool:
        copies = pool.map(lambda shard: _copy(shard[2].data), shards)
        return [
            HostPiece(item, path, _start(shard), copy) for (item, path, shard), copy in zip(shards, copies, strict=True)
        ]


def _start(shard: Any) -> tuple[int, ...]:
    return tuple(0 if part.start is None else int(part.start) for part in shard.index)


def _copy(data: jax.Array) -> np.ndarray:
    host = np.asarray(data)
    # On a CPU, and in host memory, it is a view of the buffer that the next step overwrites.
    return np.array(host) if next(iter(data.devices())).platform == "cpu" or not host.flags.owndata else host


def written_part(
    pieces: list[HostPiece], prefix: str, volume_bytes: int, write: Callable[[str, Any], Any]
) -> tuple[PartEntry, int]:
    """Writes pieces as volumes `PREFIX.N` and their index `PREFIX.json`; returns the index's entry, and all bytes.

    `write(name, data)` makes an object durable. What it raises is raised here, once no other write is under way.
    """
    names: list[str] = []
    placed: dict[str, dict[str, list[Piece]]] = {}
    total = 0
    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="volume") as pool:
        under_way: list[Future[Any]] = []
        for views, boxes in _volumes(pieces, volume_bytes):
            number = len(names)
            names.append(f"{prefix}.{number:05d}")
            total += sum(view.nbytes for view in views)
            for piece, extents in boxes:
                box = Piece(
                    piece.start, piece.array.shape, tuple(dataclasses.replace(e, volume=number) for e in extents)
                )
                _add(placed.setdefault(piece.item, {}).setdefault(piece.path, []), box)
            # Bounded: joined volumes are memory beside the snapshot.
            while len(under_way) >= _WRITERS:
                under_way.pop(0).result()
            under_way.append(pool.submit(_write_volume, write, names[-1], views))
        for future in under_way:
            future.result()
    part = Part(tuple(names), {i: {path: tuple(p) for path, p in leaves.items()} for i, leaves in placed.items()})
    data = encoded(part)
    write(f"{prefix}.json", data)
    return PartEntry(f"{prefix}.json", hashlib.sha256(data).hexdigest()), total


def _write_volume(write: Callable[[str, Any], Any], name: str, views: list[memoryview]) -> None:
    write(name, views[0] if len(views) == 1 else b"".join(views))


def _add(boxes: list[Piece], piece: Piece) -> None:
    """Adds a piece, or the rest of the one before, which a volume's end has cut."""
    if boxes and boxes[-1].start == piece.start:
        piece = dataclasses.replace(piece, extents=boxes.pop().extents + piece.extents)
    boxes.append(piece)


def _volumes(
    pieces: list[HostPiece], volume_bytes: int
) -> Iterator[tuple[list[memoryview], list[tuple[HostPiece, list[Extent]]]]]:
    """Yields the bytes of each volume, and the extents in it of each piece."""
    views: list[memoryview] = []
    boxes: list[tuple[HostPiece, list[Extent]]] = []
    offset = 0
    for piece in pieces:
        data = np.ascontiguousarray(piece.array).reshape(-1).view(np.uint8).data
        at = 0
        while at < data.nbytes:
            view = data[at : at + volume_bytes - offset]
            views.append(view)
            boxes.append((piece, [Extent(0, offset, view.nbytes, zlib.crc32(view))]))
            offset, at = offset + view.nbytes, at + view.nbytes
            if offset >= volume_bytes:
                yield views, boxes
                views, boxes, offset = [], [], 0
    if views:
        yield views, boxes
