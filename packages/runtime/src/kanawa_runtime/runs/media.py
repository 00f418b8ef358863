"""Pictures and sounds in events: what a report shows or plays. Any event may have `media`, a list of them.

They lie in the line itself, as base64, so that an event is whole or isn't there; hence they are few and small.
"""

import base64
import binascii
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

#: What a page may show: a browser runs no code of these.
TYPES = ("image/png", "image/jpeg", "audio/wav")
#: Of all media of an event together, before base64.
MOST_BYTES = 256 * 1024


class Medium(NamedTuple):
    """A picture or a sound, encoded as its `type` says, with a few words about it."""

    type: str
    data: bytes
    text: str = ""


def as_json(media: Iterable[Medium]) -> list[dict[str, str]]:
    """Returns what an event has as `media`; those that would take it beyond 256 KiB are left out."""
    written, room = [], MOST_BYTES
    for medium in media:
        if medium.type not in TYPES:
            message = f"media of type {medium.type!r} can't be shown; choices: {', '.join(TYPES)}"
            raise ValueError(message)
        room -= len(medium.data)
        if room < 0:
            break
        data = base64.b64encode(medium.data).decode()
        written.append({"type": medium.type, "data": data, "text": medium.text})
    return written


def media_of(record: Mapping[str, Any]) -> list[Medium]:
    """Returns the media of an event that was read from a file: what isn't one, or too large, is left out."""
    found, room = [], MOST_BYTES
    entries = record.get("media")
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or entry.get("type") not in TYPES or not isinstance(entry.get("data"), str):
            continue
        try:
            data = base64.b64decode(entry["data"], validate=True)
        except (binascii.Error, ValueError):
            continue
        room -= len(data)
        if room >= 0:
            found.append(Medium(entry["type"], data, str(entry.get("text", ""))))
    return found


def wav(samples: np.ndarray, rate: int, text: str = "") -> Medium:
    """Returns a sound of one channel, from -1 to 1, `rate` samples a second, as a WAV file of 16 bits."""
    data = (np.clip(samples, -1.0, 1.0) * 32767).astype("<i2").tobytes()
    # PCM, one channel: bytes a second, bytes a sample and bits a sample.
    kind = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
    chunks = b"".join(name + struct.pack("<I", len(body)) + body for name, body in ((b"fmt ", kind), (b"data", data)))
    return Medium("audio/wav", b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks, text)


def png(pixels: np.ndarray, text: str = "") -> Medium:
    """Returns a picture of uint8 pixels [height, width, 1 or 3]."""
    return Medium("image/png", png_bytes(pixels), text)


def png_bytes(pixels: np.ndarray) -> bytes:
    """Returns a PNG file (ISO 15948) of uint8 pixels [height, width, 1 or 3]: grey, or in colour."""
    height, width, channels = pixels.shape
    # Each line begins with its filter: 0, none.
    lines = np.zeros((height, 1 + width * channels), np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
