"""Rows of speech: sound files, each with what is said in it."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from kanawa.config import Positive, Size
from kanawa.contracts import RowField, Shown, SpeechBatch

from kanawa_runtime.data.media_files import MediaFiles, naming
from kanawa_runtime.data.media_items import Kind, item_bytes, words_problem
from kanawa_runtime.data.speech.wave_files import sound_samples

#: Suffixes of sound in folders and shards; all but the first need soundfile.
_SOUNDS = frozenset({".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif"})


class SpeechSource(MediaFiles):
    """Sound of at most `max_seconds` with its transcript's letters as ids, places of `alphabet`.

    Transcripts are read in small letters, of at most `sequence_length`.
    """

    batch = SpeechBatch
    unit = "letters"
    remedy: ClassVar[str] = (
        "data.max_seconds is the longest, data.convert=true takes other rates and channels, and data.on_bad=skip "
        "leaves such rows out (--set, or in --data after a colon)"
    )

    class Config(MediaFiles.Config):
        sequence_length: Size = 128
        #: Of tables; `text_field` of .json in shards, too.
        audio_field: str = "audio"
        text_field: str = "text"
        alphabet: str = "abcdefghijklmnopqrstuvwxyz' "
        sample_rate: Size = 16_000
        max_seconds: Positive = 8.0
        #: Whether channels are averaged and other rates resampled; if not, such a recording is a bad one.
        convert: bool = False

        def check(self) -> list[str]:
            """Returns what is wrong with the alphabet."""
            twice = sorted({letter for letter in self.alphabet if self.alphabet.count(letter) > 1})
            return [f"alphabet has {''.join(twice)!r} twice; each place is an id"] if twice else []

    @property
    def kind(self) -> Kind:
        """Recordings with transcripts."""
        cfg = self.config
        fields = cfg.audio_field, cfg.text_field
        return Kind("recording", _SOUNDS, *fields, "a transcript", (".txt",), False, self._text_problem)

    @property
    def fields(self) -> Mapping[str, RowField | None]:
        """Samples and their count; ids and their weights."""
        cfg = self.config
        return {
            "audio": RowField((self._most_samples,), "float32", (None,)),
            "audio_lengths": RowField((), "int32", ()),
            "target_ids": RowField((cfg.sequence_length,), "int32", ("length",)),
            "loss_weights": RowField((cfg.sequence_length,), "float32", ("length",)),
        }

    @property
    def vocab_size(self) -> int:
        """The letters, and one id for what models add to them, such as a blank."""
        return len(str(self.config.alphabet)) + 1

    def text_of(self, ids: Any) -> str:
        """Returns the letters of ids; negative ones and those past the alphabet vanish."""
        alphabet = self.config.alphabet
        return "".join(alphabet[i] for i in np.asarray(ids).tolist() if 0 <= i < len(alphabet))

    @property
    def _most_samples(self) -> int:
        return int(self.config.max_seconds * self.config.sample_rate)

    def _text_problem(self, text: Any) -> str:
        """Returns what is wrong with a transcript; "" for none."""
        cfg, problem = self.config, words_problem(text)
        if problem:
            return problem
        unknown = sorted(set(text.lower()) - set(cfg.alphabet))
        if unknown:
            return f"it has {''.join(unknown)[:20]!r}, which data.alphabet lacks"
        if len(text.lower()) > cfg.sequence_length:
            return f"it has {len(text)} letters, more than data.sequence_length ({cfg.sequence_length})"
        return ""

    def shown(self, row: Mapping[str, np.ndarray]) -> Shown:
        """Returns what is said, and the spectrogram: time across, high tones above, 60 dB from black to white."""
        samples = np.asarray(row["audio"])[: int(row["audio_lengths"])]
        text = self.text_of(row["target_ids"][row["loss_weights"] > 0])
        return Shown(text, spectrogram(samples, self.config.sample_rate)) if samples.size else Shown("left out")

    def item_row(self, number: int, index: int) -> dict[str, np.ndarray]:
        """Returns a recording and its letters; raises SoundError for one that can't be used."""
        del index
        cfg, item = self.config, self.split_items[number]
        with naming(item):
            samples = sound_samples(item_bytes(item), cfg.sample_rate, self._most_samples, converts=cfg.convert)
        audio = np.zeros(self._most_samples, np.float32)
        audio[: samples.size] = samples
        letters = item.text.lower()
        ids, weights = (np.zeros(cfg.sequence_length, dtype) for dtype in (np.int32, np.float32))
        ids[: len(letters)] = [cfg.alphabet.index(letter) for letter in letters]
        weights[: len(letters)] = 1.0
        lengths = np.array(samples.size, np.int32)
        return {"audio": audio, "audio_lengths": lengths, "target_ids": ids, "loss_weights": weights}


def spectrogram(samples: np.ndarray, rate: int) -> np.ndarray:
    """Returns the picture of a sound's energies, uint8 [64 bands, frames, 1]: windows of 25 ms, 10 ms apart."""
    width, step = max(rate // 40, 2), max(rate // 100, 1)
    padded = np.pad(samples, (0, max(width - samples.size, 0)))
    frames = np.lib.stride_tricks.sliding_window_view(padded, width)[::step] * np.hanning(width)
    energies = np.abs(np.fft.rfft(frames, n=max(width, 128))) ** 2
    edges = np.linspace(0, energies.shape[1], 65).astype(int)
    bands = np.add.reduceat(energies, edges[:-1], axis=1).T[::-1]
    decibels = 10 * np.log10(np.maximum(bands, 1e-12))
    shades: np.ndarray = np.clip((decibels - decibels.max() + 60) / 60 * 255, 0, 255).astype(np.uint8)[..., None]
    return shades
