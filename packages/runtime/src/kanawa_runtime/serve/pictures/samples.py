"""Pictures of a model in training: of the first labels or held-out texts, of the same noise each time."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from kanawa.contracts import DataSource, Environment, Made, MakesPictures

from kanawa_runtime.runs.media import as_json, png
from kanawa_runtime.serve.pictures.maker import GUIDANCE, Asked, PictureMaker

logger = logging.getLogger(__name__)

_PICTURES = 10
#: Larger pictures are reduced to this many pixels at most, so that events stay small.
_MOST_SIDE = 128


class Subject(NamedTuple):
    """What a sample is of, as the model takes it, and what it is called."""

    wish: int | tuple[int, ...] | None
    name: str


def subjects_of(made: Made, source: DataSource) -> list[Subject]:
    """Returns the first labels, or the first texts that are held out; [] of a model that can't be sampled so."""
    if made.is_latent or made.reads_states:
        return []
    if made.prompt_length is None:
        count = min(made.num_labels, _PICTURES)
        names = [*made.label_names[:count], *map(str, range(len(made.label_names), count))]
        labelled = [Subject(label, name) for label, name in enumerate(names)]
        return labelled or [Subject(None, str(number)) for number in range(_PICTURES)]
    rows = source.held_out() or source
    subjects: dict[str, Subject] = {}
    for index in range(4 * _PICTURES if rows.num_rows is None else min(rows.num_rows, 4 * _PICTURES)):
        row = rows.row(index)
        text = rows.shown(row).text
        ids = row["input_ids"][row["segment_ids"] > 0]
        subjects.setdefault(text, Subject(tuple(map(int, ids)), text))
    return [*subjects.values()][:_PICTURES]


class PictureSampler:
    """Makes samples of one model; its program is compiled at the first one and used for all."""

    def __init__(self, model: MakesPictures, environment: Environment, subjects: Sequence[Subject]) -> None:
        self._model, self._environment, self._subjects = model, environment, subjects
        self._maker: PictureMaker | None = None
        self._error: str | None = None

    def sample(self, params: Any, state: Any) -> dict[str, Any]:
        """Returns the pictures as `media`, or an `error`: a run must not end because of its samples.

        What fails once, for want of memory, is not tried again.
        """
        if self._error is None:
            try:
                return {"prompt": "", "text": "", "media": as_json(self._pictures(params, state))}
            except Exception as error:
                self._error = f"{type(error).__name__}: {error}".splitlines()[0]
                self._maker = None
                logger.warning("no more samples, the first one failed: %s", self._error, exc_info=True)
        return {"prompt": "", "text": "", "error": self._error}

    def _pictures(self, params: Any, state: Any) -> list[Any]:
        if self._maker is None:
            self._maker = PictureMaker(self._model, params, state, self._environment)
        else:
            self._maker.load(params, state)
        asked = [Asked(one.wish, seed) for seed, one in enumerate(self._subjects)]
        pictures = self._maker.make(asked, GUIDANCE)
        self._maker.unload()
        return [png(reduced(picture), one.name) for picture, one in zip(pictures, self._subjects, strict=True)]


def reduced(pixels: np.ndarray) -> np.ndarray:
    """Returns uint8 pixels [height, width, channels] reduced by a whole factor, so that no side is above 128."""
    factor = -(-max(pixels.shape[:2]) // _MOST_SIDE)
    if factor == 1:
        return pixels
    height, width = (side // factor * factor for side in pixels.shape[:2])
    tiles = pixels[:height, :width].reshape(height // factor, factor, width // factor, factor, -1)
    means: np.ndarray = np.round(tiles.mean(axis=(1, 3)))
    return means.astype(np.uint8)
