"""Pictures of a request: their pixels, what names their content, and where their tokens are in the prompt."""

import dataclasses
import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from kanawa.errors import UsageError


@dataclasses.dataclass(frozen=True, eq=False)
class Picture:
    """Pixels as the model reads them, uint8 [height, width, channels]; `digest` is that of pixels and shape."""

    pixels: np.ndarray
    digest: bytes

    @classmethod
    def of(cls, pixels: np.ndarray) -> Self:
        """Returns the picture of pixels; raises UsageError for others than uint8 [height, width, channels]."""
        if pixels.dtype != np.uint8 or pixels.ndim != 3:
            message = f"a picture is {pixels.dtype} {list(pixels.shape)}, expected uint8 [height, width, channels]"
            raise UsageError(message)
        # Cryptographic: a client that could make two pictures collide would read pages of another's.
        shape = struct.pack("<3I", *pixels.shape)
        return cls(pixels, hashlib.sha256(shape + np.ascontiguousarray(pixels).tobytes()).digest())


class PlacedPicture(NamedTuple):
    """A picture whose tokens are those of the prompt from `start` to before `stop`."""

    picture: Picture
    start: int
    stop: int


def placed_pictures(
    prompt_ids: Sequence[int], pictures: Sequence[Picture], token_id: int, num_tokens: int
) -> tuple[PlacedPicture, ...]:
    """Returns where the pictures are; raises UsageError where the prompt's picture tokens aren't theirs."""
    at = np.flatnonzero(np.asarray(prompt_ids) == token_id)
    if len(at) != num_tokens * len(pictures):
        message = (
            f"the prompt has {len(at)} picture tokens ({token_id}), and {len(pictures)} pictures of {num_tokens} each "
            f"take {num_tokens * len(pictures)}"
        )
        raise UsageError(message)
    starts = at[::num_tokens]
    for number, start in enumerate(starts):
        last = at[(number + 1) * num_tokens - 1]
        if last - start != num_tokens - 1:
            message = f"the tokens of picture {number + 1} don't follow each other: {num_tokens} from place {start} on"
            raise UsageError(message)
    return tuple(
        PlacedPicture(picture, int(start), int(start) + num_tokens)
        for picture, start in zip(pictures, starts, strict=True)
    )


def end_of_chunk(pictures: Sequence[PlacedPicture], start: int, stop: int) -> int:
    """Returns where a chunk from `start` on ends, near `stop`, so that no picture that begins in it is cut."""
    for placed in pictures:
        if placed.start < stop < placed.stop:
            return placed.start if placed.start > start else placed.stop
    return stop


def content_between(pictures: Sequence[PlacedPicture], start: int, stop: int) -> bytes:
    """Returns what tells tokens `start` to `stop` apart besides their ids: the pictures among them, and which part."""
    return b"".join(
        struct.pack("<q", start - placed.start) + placed.picture.digest
        for placed in pictures
        if placed.start < stop and placed.stop > start
    )
