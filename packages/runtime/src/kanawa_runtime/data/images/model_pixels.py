"""A picture file's bytes as the pixels that a model reads."""

from collections.abc import Sequence

import numpy as np

from kanawa_runtime.data.images.augment import Extent, fitted
from kanawa_runtime.data.images.decode import decoded


def pixels_of(data: bytes, shape: Sequence[int], max_pixels: int, *, limit: str = "max_pixels") -> np.ndarray:
    """Returns the middle of a picture in the size of `shape` (height, width, channels), uint8; raises PictureError.

    More than `max_pixels` are refused before any is decoded, and called more than `limit`.
    """
    height, width, channels = shape
    picture = fitted(decoded(data, channels, max_pixels, limit=limit), Extent(height, width))
    return np.array(picture).reshape(height, width, channels)
