"""Reading arrays back into any sharding: each process fetches the pieces that its devices need, and no others."""

import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from kanawa_runtime.checkpoint.errors import CheckpointDamagedError
from kanawa_runtime.checkpoint.shards.index import Box, Part, Piece
from kanawa_runtime.checkpoint.structure import empty_array, placed

_READERS = 8

#: (name, start, size) to bytes.
Fetch = Callable[[str, int, int], bytes]


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
