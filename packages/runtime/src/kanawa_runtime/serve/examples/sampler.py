"""What samplers share: a run must not end because of its samples; and the held-out rows that some of them show."""

import abc
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from kanawa.contracts import DataSource, Environment

from kanawa_runtime.runs.media import Medium, as_json

logger = logging.getLogger(__name__)

#: Larger pictures are reduced to this many pixels at most, so that events stay small.
_MOST_SIDE = 128
#: Rows that are looked through for some to show.
_LOOKED_THROUGH = 64


class Sampler(abc.ABC):
    """Makes samples of one model; its programs are compiled at the first one and used for all."""

    def __init__(self, prompt: str = "") -> None:
        self.prompt = prompt
        self._error: str | None = None

    @abc.abstractmethod
    def made(self, params: Any, state: Any) -> dict[str, Any]:
        """Returns what an event says of the samples beside the prompt."""

    @abc.abstractmethod
    def forget(self) -> None:
        """Frees what a failed sample holds."""

    def sample(self, params: Any, state: Any) -> dict[str, Any]:
        """Returns the `prompt` and the `text` after it or other samples, or an `error`: a run must not end by them.

        What fails once, for want of memory or of a kernel that decodes, is not tried again.
        """
        if self._error is None:
            try:
                return {"prompt": self.prompt, **self.made(params, state)}
            except Exception as error:
                self._error = f"{type(error).__name__}: {error}".splitlines()[0]
                self.forget()
                logger.warning("no more samples, the first one failed: %s", self._error, exc_info=True)
        return {"prompt": self.prompt, "text": "", "error": self._error}


class MediaSampler(Sampler):
    """Makes pictures or sounds."""

    #: What the media are, in a sentence for the report.
    about: ClassVar[str]

    @abc.abstractmethod
    def media(self, params: Any, state: Any) -> list[Medium]:
        """Returns the samples."""

    def made(self, params: Any, state: Any) -> dict[str, Any]:
        """Returns the samples as `media`, and what they are."""
        return {"text": "", "about": self.about, "media": as_json(self.media(params, state))}


class HeldOutSampler(MediaSampler):
    """Shows what a model makes of the first `count` rows that are held out, always the same."""

    count: ClassVar[int]

    def __init__(self, source: DataSource, environment: Environment) -> None:
        super().__init__()
        self._source, self._environment = source, environment
        self._rows: list[dict[str, np.ndarray]] | None = None

    @abc.abstractmethod
    def shown(self, rows: list[dict[str, np.ndarray]], params: Any, state: Any) -> list[Medium]:
        """Returns the samples of rows, of which there is one at least."""

    def media(self, params: Any, state: Any) -> list[Medium]:
        """Returns the samples; none of data that show nothing."""
        if self._rows is None:
            wanted = (row for row in held_out_rows(self._source, _LOOKED_THROUGH) if np.any(row["loss_weights"]))
            self._rows = list(itertools.islice(wanted, self.count))
        return self.shown(self._rows, params, state) if self._rows else []

    def forget(self) -> None:
        """Frees the rows."""
        self._rows = None


def held_out_rows(source: DataSource, most: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields at most so many of the first rows that are held out; of data without such, any."""
    rows = source.held_out() or source
    for index in range(most if rows.num_rows is None else min(rows.num_rows, most)):
        yield rows.row(index)


def batch_of(source: DataSource, rows: Sequence[Mapping[str, np.ndarray]]) -> Any:
    """Returns the record of rows; fields that the source doesn't have are None."""
    record: Any = source.batch
    held = rows[0].keys()
    return record(**{name: np.stack([row[name] for row in rows]) if name in held else None for name in record._fields})


def reduced(pixels: np.ndarray) -> np.ndarray:
    """Returns uint8 pixels [height, width, channels] reduced by a whole factor, so that no side is above 128."""
    factor = -(-max(pixels.shape[:2]) // _MOST_SIDE)
    if factor == 1:
        return pixels
    height, width = (side // factor * factor for side in pixels.shape[:2])
    tiles = pixels[:height, :width].reshape(height // factor, factor, width // factor, factor, -1)
    means: np.ndarray = np.round(tiles.mean(axis=(1, 3)))
    return means.astype(np.uint8)
