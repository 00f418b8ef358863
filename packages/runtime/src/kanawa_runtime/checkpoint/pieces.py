"""Arrays as pieces: copied off the devices, written in volumes while training continues, and read into any sharding.

A piece is a box of one array, in C order, little-endian, as it lay on a device. Its bytes are one or more extents of
volumes, files of a bounded size: object stores take bounded objects, and many small ones are slow. One index a process,
whose SHA-256 the manifest holds, says where they lie.
"""

import dataclasses
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from kanawa_runtime.checkpoint.errors import CheckpointDamagedError
from kanawa_runtime.checkpoint.manifest import PartEntry
from kanawa_runtime.checkpoint.structure import empty_array, placed

#: Volumes on their way at once; each holds at most a volume's bytes beside the snapshot.
_WRITERS = 4
_COPIERS = 4
_READERS = 8

#: (name, start, size) to bytes.
Fetch = Callable[[str, int, int], bytes]
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


def encoded_index(part: Part) -> bytes:
    """Returns a part's index as it is written: extents as [volume, offset, size, crc32], for there are many."""
    pieces = {
        item: {
            path: [[p.start, p.shape, [dataclasses.astuple(e) for e in p.extents]] for p in boxes]
            for path, boxes in arrays.items()
        }
        for item, arrays in part.pieces.items()
    }
    return json.dumps({"volumes": part.volumes, "pieces": pieces}).encode()


def decoded_index(data: bytes) -> Part:
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


# --- writing -------------------------------------------------------------------------------------------------------


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
    data = encoded_index(part)
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


# --- reading -------------------------------------------------------------------------------------------------------


class PieceMissingError(CheckpointDamagedError):
    """What is here of a step does not cover what is asked for; on a tier of one host that is no damage."""


def read_arrays(parts: list[Part], item: str, leaves: Mapping[str, Any], fetch: Fetch) -> dict[str, jax.Array]:
    """Returns the arrays of one item in the shardings of the abstract `leaves`.

    Raises CheckpointDamagedError for bytes that are not those written, PieceMissingError, and whatever `fetch` raises.
    """
    pieces = {
        path: [(part, piece) for part in parts for piece in part.pieces.get(item, {}).get(path, ())] for path in leaves
    }
    asked = placed(leaves)
    with ThreadPoolExecutor(_READERS, thread_name_prefix="piece") as pool:
        boxes = {
            path: pool.submit(_boxes, f"{item}: {path}", pieces[path], leaf, fetch)
            for path, leaf in asked.items()
            if 0 not in leaf.shape
        }
        return {
            path: _assembled(leaf, boxes[path].result()) if path in boxes else empty_array(leaf)
            for path, leaf in asked.items()
        }


def _boxes(
    name: str, pieces: list[tuple[Part, Piece]], leaf: jax.ShapeDtypeStruct, fetch: Fetch
) -> dict[Any, np.ndarray]:
    """Returns the content of every distinct box that this process's devices hold of an array."""
    wanted = leaf.sharding.addressable_devices_indices_map(leaf.shape).values()
    boxes = {key: box for box in map(lambda index: _whole(index, leaf.shape), wanted) for key in [_key(box)]}
    out = {key: np.empty([s.stop - s.start for s in box], leaf.dtype) for key, box in boxes.items()}
    covered = dict.fromkeys(boxes, 0)
    for part, piece in pieces:
        overlaps = {key: piece.overlap(box) for key, box in boxes.items()}
        if not any(overlaps.values()):
            continue
        content = _content(name, part, piece, leaf.dtype, fetch)
        for key, overlap in overlaps.items():
            if overlap is not None:
                out[key][overlap[1]] = content[overlap[0]]
                covered[key] += content[overlap[0]].size
    for key, box in boxes.items():
        if covered[key] != out[key].size:
            message = f"{name}: of the {out[key].size} elements at {box} only {covered[key]} are stored here"
            raise PieceMissingError(message)
    return out


def _content(name: str, part: Part, piece: Piece, dtype: Any, fetch: Fetch) -> np.ndarray:
    """Returns one piece, its bytes as they were written."""
    chunks = []
    for extent in piece.extents:
        volume = part.volumes[extent.volume]
        data = fetch(volume, extent.offset, extent.size)
        if len(data) != extent.size or zlib.crc32(data) != extent.crc32:
            message = f"{name}: the bytes from {extent.offset} of {volume} are not those written"
            raise CheckpointDamagedError(message)
        chunks.append(data)
    joined = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    array: np.ndarray = np.frombuffer(joined, np.uint8).view(dtype).reshape(piece.shape)
    return array


def _assembled(leaf: jax.ShapeDtypeStruct, boxes: Mapping[Any, np.ndarray]) -> jax.Array:
    return jax.make_array_from_callback(
        leaf.shape, leaf.sharding, lambda index: boxes[_key(_whole(index, leaf.shape))], dtype=leaf.dtype
    )


def _whole(index: Any, shape: tuple[int, ...]) -> Box:
    return tuple(slice(*part.indices(size)[:2]) for part, size in zip(index, shape, strict=True))


def _key(box: Box) -> tuple[tuple[int, int], ...]:
    # Slices can't be hashed before Python 3.12.
    return tuple((part.start, part.stop) for part in box)
