"""Sound files to samples: WAV without a library, other formats by soundfile."""

import importlib
import io
import math
import struct
from typing import Any, NamedTuple

import numpy as np

from kanawa_runtime.data.errors import ItemError

_WHOLE, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
#: (encoding, bits of a sample): its type, what silence is, and the largest amplitude. Three bytes become four.
_FORMATS = {
    (_WHOLE, 8): ("u1", 128, 128.0),
    (_WHOLE, 16): ("<i2", 0, 32768.0),
    (_WHOLE, 24): ("<i4", 0, 2147483648.0),
    (_WHOLE, 32): ("<i4", 0, 2147483648.0),
    (_FLOAT, 32): ("<f4", 0, 1.0),
    (_FLOAT, 64): ("<f8", 0, 1.0),
}
#: The size of data that a program wrote before it knew how many there would be.
_UNKNOWN_SIZE = 0xFFFFFFFF
#: Resampling from or to an odd rate makes a filter of as many taps.
_HIGHEST_RATE, _MOST_CHANNELS = 768_000, 64


class SoundError(ItemError):
    """Bytes aren't sound that can be used; the message says why."""


class _Header(NamedTuple):
    encoding: int
    channels: int
    rate: int
    bits: int


def sound_samples(content: bytes, rate: int, most: int, *, converts: bool = False) -> np.ndarray:
    """Returns the samples of a file, float32 from -1 to 1: at most `most`, at `rate` Hz, of one channel.

    Raises SoundError for other ones, and for what is damaged, before more than a header is decoded. With `converts`
    the mean of channels is resampled instead (a polyphase filter, scipy's).
    """
    if not content:
        message = "the file is empty"
        raise SoundError(message)
    is_wave = content[:4] == b"RIFF" and content[8:12] == b"WAVE"
    samples, channels, found = (_wave if is_wave else _other)(content, None if converts else rate, most / rate)
    samples = samples.reshape(-1, channels).mean(axis=1) if channels > 1 else samples
    if found != rate:
        signal: Any = importlib.import_module("scipy.signal")
        shared = math.gcd(found, rate)
        samples = signal.resample_poly(samples, rate // shared, found // shared).astype(np.float32)[:most]
    # NaN is the least and the largest of any numbers.
    low, high = (samples.min(), samples.max()) if samples.size else (0.0, 0.0)
    if not np.isfinite([low, high]).all():
        message = "some of its samples are no finite numbers"
        raise SoundError(message)
    return samples if low >= -1.0 and high <= 1.0 else np.clip(samples, -1.0, 1.0)


def _wave(content: bytes, rate: int | None, seconds: float) -> tuple[np.ndarray, int, int]:
    header, data, size = _chunks(content)
    kind = _FORMATS.get((header.encoding, header.bits))
    if kind is None:
        coded = {_WHOLE: "whole numbers", _FLOAT: "floats"}.get(header.encoding, f"encoding {header.encoding}")
        message = (
            f"its samples are {coded} of {header.bits} bits; whole numbers of 8, 16, 24 and 32 bits and floats of 32 "
            "and 64 are read; convert it: ffmpeg -i IN -c:a pcm_s16le OUT.wav"
        )
        raise SoundError(message)
    width = header.bits // 8
    _check(size // (width * max(header.channels, 1)), header.channels, header.rate, rate, seconds)
    if len(data) < size:
        message = f"it ends after {len(data) // width} of the {size // width} samples that its header names"
        raise SoundError(message)
    data = data[: size // (width * header.channels) * width * header.channels]
    if width == 3:
        # The lowest byte of 32 bits is zero.
        padded = np.zeros((len(data) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        data = padded.tobytes()
    dtype, silence, largest = kind
    samples = (np.frombuffer(data, dtype).astype(np.float32) - np.float32(silence)) / np.float32(largest)
    return samples, header.channels, header.rate


def _chunks(content: bytes) -> tuple[_Header, bytes, int]:
    """Returns a WAV file's header, the bytes of its samples, and how many of those the file says that it has."""
    header, place = None, 12
    while place + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, place)
        body = place + 8
        if name == b"fmt " and body + 16 <= len(content):
            encoding, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", content, body)
            if encoding == _EXTENSIBLE and size >= 26 and body + 26 <= len(content):
                (encoding,) = struct.unpack_from("<H", content, body + 24)
            header = _Header(encoding, channels, rate, bits)
        elif name == b"data" and header is not None:
            size = len(content) - body if size == _UNKNOWN_SIZE else size
            return header, content[body : body + size], size
        # Chunks begin at even places.
        place = body + size + size % 2
    lacks = "format" if header is None else "samples"
    message = f"it isn't a WAV file that can be read: it ends before its {lacks}"
    raise SoundError(message)


def _other(content: bytes, rate: int | None, seconds: float) -> tuple[np.ndarray, int, int]:
    try:
        library: Any = importlib.import_module("soundfile")
    except ModuleNotFoundError as error:
        begins = f"it is no WAV file: it begins with {content[:8]!r}"
        message = f'{begins}; other formats need soundfile: pip install "kanawa-runtime[audio]"'
        raise SoundError(message) from error
    try:
        with library.SoundFile(io.BytesIO(content)) as file:
            _check(file.frames, file.channels, file.samplerate, rate, seconds)
            return file.read(dtype="float32"), file.channels, file.samplerate
    except library.LibsndfileError as error:
        message = f"it is no sound file that soundfile reads ({error}): it begins with {content[:8]!r}"
        raise SoundError(message) from error


def _check(count: int, channels: int, found: int, rate: int | None, seconds: float) -> None:
    """Raises SoundError before anything of a file that can't be used, or of an absurd header, is decoded."""
    if channels < 1 or found < 1:
        message = f"its header names {channels} channels at {found} Hz: it is damaged"
        raise SoundError(message)
    if count > seconds * found:
        message = f"it lasts {count / found:,.2f} s, more than the limit of {seconds:,.2f} s"
        raise SoundError(message)
    if found > _HIGHEST_RATE or channels > _MOST_CHANNELS:
        message = (
            f"it has {channels} channels at {found:,} Hz; at most {_MOST_CHANNELS} at {_HIGHEST_RATE:,} Hz are read"
        )
        raise SoundError(message)
    if rate is not None and (channels != 1 or found != rate):
        message = (
            f"it has {channels} channel{'s' * (channels != 1)} at {found} Hz, expected one at {rate} Hz; "
            f"convert it: ffmpeg -i IN -ac 1 -ar {rate} OUT.wav"
        )
        raise SoundError(message)
    if not count:
        message = "it has no samples"
        raise SoundError(message)
