"""Bytes to a picture, with limits: what isn't one, is cut off or would fill the memory is refused with a reason."""

import importlib
import io
import re
from typing import Any

from kanawa_runtime.data.errors import CorpusError, ItemError

#: Suffixes of pictures in folders.
PICTURES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff"})
#: More bits than a channel of 8 has: conversion would cut them off, in silence.
_DEEP = ("I", "F")
_MODES = {1: "L", 3: "RGB"}


class PictureError(ItemError):
    """Bytes can't become a picture."""


def pillow(module: str = "Image") -> Any:
    """Returns a module of Pillow; raises CorpusError, which names the extra, where it isn't installed."""
    try:
        return importlib.import_module(f"PIL.{module}")
    except ModuleNotFoundError as error:
        message = 'pictures need the library Pillow: pip install "kanawa-runtime[images]"'
        raise CorpusError(message) from error


def decoded(data: bytes, channels: int, max_pixels: int, *, convert: bool = True, limit: str = "max_pixels") -> Any:
    """Returns the upright picture of an image file's bytes as Pillow's, grey (1 channel) or in colour (3).

    Other channels are converted, transparency over white; without `convert` they are refused. Raises PictureError for
    what is no picture, is cut off, has more than 8 bits a channel, or more than `max_pixels` pixels, which users know
    as `limit`.
    """
    library, mode = pillow(), _MODES[channels]
    if not data:
        message = "the file is empty"
        raise PictureError(message)
    try:
        # Reads the header and no pixel.
        picture = library.open(io.BytesIO(data))
    except (library.DecompressionBombError, library.DecompressionBombWarning) as error:
        size = re.search(r"\((\d+) pixels\)", str(error))
        count = f"{int(size[1]):,}" if size else f"over {2 * (library.MAX_IMAGE_PIXELS or 0):,}"
        message = f"{count} pixels, more than max_pixels={max_pixels:,} and than Pillow's own limit"
        raise PictureError(message) from error
    except library.UnidentifiedImageError as error:
        message = f"no picture: it begins with {data[:8]!r}"
        raise PictureError(message) from error
    except Exception as error:  # A decoder raises whatever its format makes it.
        message = f"its header can't be read: {error}"
        raise PictureError(message) from error
    width, height = picture.size
    if width * height > max_pixels:
        message = f"{width} x {height} pixels, more than {limit}={max_pixels:,}"
        raise PictureError(message)
    # Of colours with 16 bits a channel the mode says nothing, only how they are stored; BGR;16 is a whole pixel.
    stored = any(re.search(r"(?<!BGR);16", str(tile[3])) for tile in picture.tile)
    if picture.mode.startswith(_DEEP) or stored:
        message = f"channels of more than 8 bits (Pillow's mode {picture.mode}); convert it to 8 bits"
        raise PictureError(message)
    if not convert and picture.mode != mode:
        message = f"its channels are {picture.mode}, expected {mode}; convert it, or set data.convert=true"
        raise PictureError(message)
    try:
        picture.load()
        return _converted(pillow("ImageOps").exif_transpose(picture), mode)
    except Exception as error:
        message = f"damaged or cut off: {error}"
        raise PictureError(message) from error


def _converted(picture: Any, mode: str) -> Any:
    if picture.has_transparency_data:
        shown = picture.convert("RGBA")
        under = pillow().new("RGBA", shown.size, "white")
        picture = pillow().alpha_composite(under, shown)
    return picture if picture.mode == mode else picture.convert(mode)
