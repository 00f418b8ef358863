"""Rows of speech: records that name a sound file, or hold its bytes, with what is said in it."""

import functools
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from kanawa.config import Config, Count, Positive, Size, to_json
from kanawa.contracts import SpeechBatch
from kanawa.contracts.data import DataSource, RowField, Split

from kanawa_runtime.data.corpus import is_held_out
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.permutation import permutation
from kanawa_runtime.data.records.files import RecordFiles
from kanawa_runtime.data.speech.wave_files import SoundError, sound_samples

logger = logging.getLogger(__name__)
#: So many bad records are shown with their places.
_SHOWN = 3


class Utterance(NamedTuple):
    """A record: its name, the sound's path or bytes, and what is said."""

    name: str
    audio: Path | bytes
    text: str


class SpeechSource(DataSource):
    """Sound of at most `max_seconds` with its transcript's letters as ids, places of `alphabet`; each epoch reordered.

    Files are those that `RecordFiles` reads (JSON Lines, CSV, Parquet …): column `audio` is a path relative to
    `records.root`, or the file's bytes; column `text` the transcript, which is read in small letters. A record that
    can't be used stops the run, or with `on_bad=skip` is a row of weight 0. Ids are at most `sequence_length` a row.
    """

    batch = SpeechBatch
    unit = "letters"

    class Config(DataSource.Config):
        sequence_length: Size = 128
        records: RecordFiles.Config = RecordFiles.Config()
        audio: str = "audio"
        text: str = "text"
        alphabet: str = "abcdefghijklmnopqrstuvwxyz' "
        sample_rate: Size = 16_000
        max_seconds: Positive = 8.0
        #: One record in this many, chosen by the hash of its name, is held out; 0 holds out none.
        validation_one_in: Count = 20
        on_bad: Literal["stop", "skip"] = "stop"
        #: The rows of one split, once through; "" are those to train on, without end.
        split: Literal["", "train", "validation"] = ""

        def check(self) -> list[str]:
            """Returns what is wrong with the alphabet."""
            twice = sorted({letter for letter in self.alphabet if self.alphabet.count(letter) > 1})
            return [f"alphabet has {''.join(twice)!r} twice; each place is an id"] if twice else []

        @classmethod
        def of_files(cls, address: str, experiment: Config) -> "SpeechSource.Config | None":
            """Returns the rows of the records at an address, beside which their sound files lie."""
            own: Any = vars(experiment).get("data")
            path = Path(address).resolve()
            records = RecordFiles.Config(files=(path.name,), root=str(path.parent))
            cfg: SpeechSource.Config = own.clone() if isinstance(own, cls) else cls()
            return cfg.set(records=records)

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
    def packed(self) -> bool:
        """False: a row is one recording."""
        return False

    @property
    def vocab_size(self) -> int:
        """The letters, and one id for what models add to them, such as a blank."""
        return len(str(self.config.alphabet)) + 1

    @property
    def num_rows(self) -> int | None:
        """The records of a split; None where they are repeated without end."""
        return len(self._chosen) if self.config.split else None

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) of the config, the records and the sizes of their files."""
        # Where the files lie says nothing about them.
        own = {**to_json(self.config), "records": self._records.digest}
        content = json.dumps([own, [_size(item.audio) for item in self._items]], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`; see `DataSource.row`. Raises CorpusError naming a record that can't be used."""
        item = self._item(index)
        try:
            return self._row_of(item)
        except SoundError as error:
            if self.config.on_bad == "stop":
                message = f"{item.name}: {error}"
                raise CorpusError(message) from error
            logger.warning("%s is skipped: %s", item.name, error)
            return {name: np.zeros(f.shape, f.dtype) for name, f in self.fields.items() if f is not None}

    def record(self, index: int) -> Mapping[str, Any]:
        """Returns the transcript of a split's row: {"text": …}."""
        item = self._item(index)
        return {"name": item.name, "text": item.text}

    def held_out(self) -> "DataSource | None":
        """Returns the held-out records, once through; None where none are."""
        return self.once("validation") if self.config.validation_one_in else None

    def once(self, split: Split | None = None) -> "DataSource | None":
        """Returns the records of a split in order."""
        return type(self)(self.config.clone().set(split=split or "train").freeze())

    def text_of(self, ids: Any) -> str:
        """Returns the letters of ids; negative ones and those past the alphabet vanish."""
        alphabet = self.config.alphabet
        return "".join(alphabet[i] for i in np.asarray(ids).tolist() if 0 <= i < len(alphabet))

    def _item(self, index: int) -> Utterance:
        """Returns what row `index` holds; raises IndexError past the end of a split."""
        count = len(self._chosen)
        if not self.config.split:
            return self._chosen[int(self._order(index // count)[index % count])]
        if index >= count:
            message = f"row {index} of {count}"
            raise IndexError(message)
        return self._chosen[index]

    @property
    def _most_samples(self) -> int:
        return int(self.config.max_seconds * self.config.sample_rate)

    @functools.cached_property
    def _records(self) -> RecordFiles:
        records: RecordFiles = self.config.records.clone().build()
        return records

    @functools.cached_property
    def _items(self) -> list[Utterance]:
        items = list(self._usable())
        if not items:
            message = f"{self._records.describe()} has no sound with a transcript"
            raise CorpusError(message)
        return items

    @functools.cached_property
    def _chosen(self) -> list[Utterance]:
        one_in, wanted = self.config.validation_one_in, self.config.split == "validation"
        chosen = [item for item in self._items if is_held_out(item.name, one_in) == wanted]
        if not chosen:
            split = "validation" if wanted else "train"
            message = f"no record is in the {split} split (validation_one_in={one_in}) of {len(self._items)}; give more"
            raise CorpusError(message)
        return chosen

    @functools.lru_cache(maxsize=2)  # noqa: B019 - a source lives as long as its run
    def _order(self, epoch: int) -> np.ndarray:
        return permutation(len(self._chosen), self.config.seed, epoch)

    def _usable(self) -> Iterator[Utterance]:
        """Yields the records whose sound and transcript fit; raises CorpusError for others, or counts them."""
        cfg, skipped = self.config, 0
        for record in self._records.unchanged():
            problem = self._problem(record.fields)
            if not problem:
                audio: Any = record.fields[cfg.audio]
                held = audio["bytes"] if isinstance(audio, dict) else audio
                place = held if isinstance(held, bytes) else Path(cfg.records.root, held)
                yield Utterance(record.name, place, record.fields[cfg.text].lower())
                continue
            if cfg.on_bad == "stop":
                message = f"{record.name}: {problem}; correct it, or leave such records out: data.on_bad=skip"
                raise CorpusError(message)
            skipped += 1
            if skipped <= _SHOWN:
                logger.warning("%s is left out: %s", record.name, problem)
        if skipped:
            logger.warning("%d records of %s are left out", skipped, self._records.describe())

    def _problem(self, fields: Mapping[str, Any]) -> str:
        """Returns why a record can't be used; "" if it can."""
        cfg = self.config
        for column in (cfg.audio, cfg.text):
            if fields.get(column) is None:
                return f"there is no {column!r}; its columns are {', '.join(sorted(fields)) or 'none'}"
        text, audio = fields[cfg.text], fields[cfg.audio]
        if not isinstance(text, str):
            return f"{cfg.text!r} is a {type(text).__name__}, expected text"
        unknown = sorted(set(text.lower()) - set(cfg.alphabet))
        if unknown:
            return f"its text has {''.join(unknown)[:20]!r}, which data.alphabet lacks"
        if len(text) > cfg.sequence_length:
            return f"its text has {len(text)} letters, more than data.sequence_length ({cfg.sequence_length})"
        if isinstance(audio, dict):
            audio = audio.get("bytes")
        if not isinstance(audio, (str, bytes)):
            return f"{cfg.audio!r} is a {type(audio).__name__}, expected a path or the bytes of a file"
        if isinstance(audio, str) and not Path(cfg.records.root, audio).is_file():
            return f"there is no file {Path(cfg.records.root, audio)}"
        return ""

    def _row_of(self, item: Utterance) -> dict[str, np.ndarray]:
        content = item.audio if isinstance(item.audio, bytes) else item.audio.read_bytes()
        samples = sound_samples(content, self.config.sample_rate, self._most_samples)
        audio = np.zeros(self._most_samples, np.float32)
        audio[: samples.size] = samples
        ids, weights = (np.zeros(self.config.sequence_length, dtype) for dtype in (np.int32, np.float32))
        ids[: len(item.text)] = [self.config.alphabet.index(letter) for letter in item.text]
        weights[: len(item.text)] = 1.0
        return {
            "audio": audio,
            "audio_lengths": np.int32(samples.size),  # type: ignore[dict-item]
            "target_ids": ids,
            "loss_weights": weights,
        }


def _size(audio: Path | bytes) -> int:
    return len(audio) if isinstance(audio, bytes) else audio.stat().st_size
