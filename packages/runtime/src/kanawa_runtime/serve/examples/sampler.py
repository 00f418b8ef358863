"""What samplers of media share: a run must not end because of its samples; and the rows that they show."""

import abc
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from kanawa.contracts import DataSource

from kanawa_runtime.runs.media import Medium, as_json

logger = logging.getLogger(__name__)

#: Larger pictures are reduced to this many pixels at most, so that events stay small.
_MOST_SIDE = 128
#: Rows that are looked through for some to show.
_LOOKED_THROUGH = 64


class MediaSampler(abc.ABC):
    """Makes samples of one model; its programs are compiled at the first one and used for all."""

    #: What the media are, in a sentence for the report.
    about: ClassVar[str]

    def __init__(self) -> None:
        self._error: str | None = None

    @abc.abstractmethod
    def media(self, params: Any, state: Any) -> list[Medium]:
        """Returns the samples."""

    @abc.abstractmethod
    def forget(self) -> None:
        """Frees what a failed sample holds."""

    def sample(self, params: Any, state: Any) -> dict[str, Any]:
        """Returns the samples as `media`, or an `error`. What fails once, for want of memory, is not tried again."""
        if self._error is None:
            try:
                made = as_json(self.media(params, state))
                return {"prompt": "", "text": "", "about": self.about, "media": made}
            except Exception as error:
                self._error = f"{type(error).__name__}: {error}".splitlines()[0]
                self.forget()
                logger.warning("no more samples, the first one failed: %s", self._error, exc_info=True)
        return {"prompt": "", "text": "", "error": self._error}


def first_rows(source: DataSource, count: int) -> list[dict[str, np.ndarray]]:
    """Returns the first rows that are held out, without those that were left out; of data without such, any."""
    rows = source.held_out() or source
    found: list[dict[str, np.ndarray]] = []
    most = _LOOKED_THROUGH if rows.num_rows is None else min(rows.num_rows, _LOOKED_THROUGH)
    for index in range(most):
        row = rows.row(index)
        if np.any(row["loss_weights"]):
            found.append(row)
        if len(found) == count:
            break
    return found


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
