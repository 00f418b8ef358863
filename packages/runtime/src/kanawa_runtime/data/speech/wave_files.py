"""Sound files to samples: WAV by the standard library, other formats by soundfile."""

import importlib
import io
import wave
from typing import Any

import numpy as np
from kanawa.errors import UsageError

#: Bytes of a sample: its type, what silence is, and the largest amplitude.
_FORMATS = {1: ("u1", 128, 128.0), 2: ("<i2", 0, 32768.0), 4: ("<i4", 0, 2147483648.0)}


class SoundError(UsageError):
    """Bytes aren't sound that can be used; the message says why, and what to do."""


def sound_samples(content: bytes, rate: int, most: int) -> np.ndarray:
    """Returns the samples of a file, float32 from -1 to 1; raises SoundError for another rate, channels or length."""
    if content[:4] == b"RIFF" and content[8:12] == b"WAVE":
        samples, found, channels = _wave(content, most)
    else:
        samples, found, channels = _other(content, most)
    if channels != 1 or found != rate:
        message = (
            f"it has {channels} channels at {found} Hz, expected one at {rate} Hz; "
            f"convert it: ffmpeg -i IN -ac 1 -ar {rate} OUT.wav"
        )
        raise SoundError(message)
    return samples


def _wave(content: bytes, most: int) -> tuple[np.ndarray, int, int]:
    try:
        with wave.open(io.BytesIO(content)) as file:
            width, channels, rate, count = (
                file.getsampwidth(),
                file.getnchannels(),
                file.getframerate(),
                file.getnframes(),
            )
            _check_length(count, most, rate)
            data = file.readframes(count)
    except (wave.Error, EOFError) as error:
        message = f"it isn't a WAV file that can be read ({error or 'it ends too early'})"
        raise SoundError(message) from error
    if len(data) < count * channels * width:
        message = f"it ends after {len(data) // (channels * width)} of the {count} samples that its header names"
        raise SoundError(message)
    if width == 3:
        # The lowest byte of 32 bits is zero.
        padded = np.zeros((count * channels, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        data, width = padded.tobytes(), 4
    kind, silence, largest = _FORMATS[width]
    samples = (np.frombuffer(data, kind).astype(np.float32) - silence) / np.float32(largest)
    return samples, rate, channels


def _other(content: bytes, most: int) -> tuple[np.ndarray, int, int]:
    try:
        library: Any = importlib.import_module("soundfile")
    except ModuleNotFoundError as error:
        message = 'it is no WAV file; other formats need soundfile: pip install "kanawa-runtime[audio]"'
        raise SoundError(message) from error
    try:
        with library.SoundFile(io.BytesIO(content)) as file:
            _check_length(file.frames, most, file.samplerate)
            samples = file.read(dtype="float32")
            return samples, file.samplerate, file.channels
    except library.LibsndfileError as error:
        message = f"it is no sound file that soundfile reads ({error})"
        raise SoundError(message) from error


def _check_length(count: int, most: int, rate: int) -> None:
    """Raises SoundError before anything of a file that is too long, or of an absurd header, is decoded."""
    if count > most:
        message = (
            f"it lasts {count / rate:.1f} s, more than max_seconds allows; cut it, raise max_seconds, or on_bad=skip"
        )
        raise SoundError(message)
    if not count:
        message = "it has no samples"
        raise SoundError(message)
