"""Pictures of a model in training: one of each of the first labels, of the same noise each time."""

import logging
from typing import Any

import numpy as np
from kanawa.contracts import Environment, MakesPictures

from kanawa_runtime.runs.media import as_json, png
from kanawa_runtime.serve.pictures.maker import Asked, PictureMaker

logger = logging.getLogger(__name__)

_PICTURES = 10
#: As most papers show them: closer to the label than the model by itself.
_GUIDANCE = 2.0
#: Larger pictures are reduced to this many pixels at most, so that events stay small.
_MOST_SIDE = 128


class PictureSampler:
    """Makes samples of one model; its program is compiled at the first one and used for all."""

    def __init__(self, model: MakesPictures, environment: Environment) -> None:
        self._model, self._environment = model, environment
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
        made = self._maker.made
        count = min(made.num_labels, _PICTURES) or _PICTURES
        labels = range(count) if made.num_labels else [None] * count
        asked = [Asked(label, seed) for seed, label in enumerate(labels)]
        pictures = self._maker.make(asked, _GUIDANCE)
        self._maker.unload()
        names = [*made.label_names[:count], *map(str, range(len(made.label_names), count))]
        return [png(reduced(picture), name) for picture, name in zip(pictures, names, strict=True)]


def reduced(pixels: np.ndarray) -> np.ndarray:
    """Returns uint8 pixels [height, width, channels] reduced by a whole factor, so that no side is above 128."""
    factor = -(-max(pixels.shape[:2]) // _MOST_SIDE)
    if factor == 1:
        return pixels
    height, width = (side // factor * factor for side in pixels.shape[:2])
    tiles = pixels[:height, :width].reshape(height // factor, factor, width // factor, factor, -1)
    means: np.ndarray = np.round(tiles.mean(axis=(1, 3)))
    return means.astype(np.uint8)
