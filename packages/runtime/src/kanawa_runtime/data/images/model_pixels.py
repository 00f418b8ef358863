"""A picture file's bytes as the pixels that a model reads."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kanawa_runtime.data.images.augment import Extent, fitted
from kanawa_runtime.data.images.decode import decoded


def pixels_of(data: bytes, shape: Sequence[int], max_pixels: int, *, limit: str = "max_pixels") -> np.ndarray:
    """Returns the middle of a picture in the size of `shape` (height, width, channels), uint8; raises PictureError.

    More than `max_pixels` are refused before any is decoded, and called more than `limit`.
    """
    return fitted_pixels(decoded(data, shape[2], max_pixels, limit=limit), shape)


def fitted_pixels(picture: Any, shape: Sequence[int]) -> np.ndarray:
    """Returns the same of a picture of Pillow's."""
    height, width, channels = shape
    return np.array(fitted(picture, Extent(height, width))).reshape(height, width, channels)
