"""What changes a picture before a model sees it: cut to size, and at random while training."""

import abc
import math
from typing import Any, NamedTuple

import kanawa as kn
from kanawa.config import Configurable

from kanawa_runtime.data.images.decode import pillow
from kanawa_runtime.data.images.draws import Draws


class Extent(NamedTuple):
    """Height and width in pixels."""

    height: int
    width: int


def fitted(picture: Any, extent: Extent) -> Any:
    """Returns the middle of a picture, as large as has the extent's shape, resized to it."""
    if picture.size == (extent.width, extent.height):
        return picture
    width, height = picture.size
    scale = min(width / extent.width, height / extent.height)
    left, top = (width - scale * extent.width) / 2, (height - scale * extent.height) / 2
    return _resized(picture, (left, top, left + scale * extent.width, top + scale * extent.height), extent)


def _resized(picture: Any, box: tuple[float, float, float, float], extent: Extent) -> Any:
    bicubic = pillow().Resampling.BICUBIC
    # Reducing by whole factors first reads large pictures once, not once for each tap of the filter.
    return picture.resize((extent.width, extent.height), bicubic, box=box, reducing_gap=2.0)


class Augmentation(Configurable):
    """A random change of training pictures; held-out ones are never changed."""

    class Config(Configurable.Config):
        """Fields of a subclass are its strengths."""

    @abc.abstractmethod
    def __call__(self, picture: Any, extent: Extent, draws: Draws) -> Any:
        """Returns a changed picture (Pillow's), of any size, by random numbers of `draws` alone.

        `extent` is the size that the model gets in the end.
        """


class Flip(Augmentation):
    """Left and right exchanged, in `probability` of the rows."""

    class Config(Augmentation.Config):
        probability: kn.Partial = 0.5

    def __call__(self, picture: Any, extent: Extent, draws: Draws) -> Any:
        """Returns the picture or its mirror image."""
        del extent
        mirrored = draws.uniform() < self.config.probability
        return picture.transpose(pillow().Transpose.FLIP_LEFT_RIGHT) if mirrored else picture


class RandomCrop(Augmentation):
    """A part of `scale` to 1 of the area, of a shape up to `stretch` times as wide or as high (Szegedy et al. 2014).

    GoogLeNet's, arXiv:1409.4842, section 6.
    """

    class Config(Augmentation.Config):
        scale: kn.Partial = 0.25
        stretch: kn.Positive = 4 / 3

    def __call__(self, picture: Any, extent: Extent, draws: Draws) -> Any:
        """Returns the part, resized to the extent; the middle where no part of that shape fits."""
        cfg, (width, height) = self.config, picture.size
        area = width * height * draws.uniform(cfg.scale, 1.0)
        ratio = extent.width / extent.height * math.exp(draws.uniform(-1.0, 1.0) * abs(math.log(cfg.stretch)))
        across, down = math.sqrt(area * ratio), math.sqrt(area / ratio)
        shrink = min(1.0, width / across, height / down)
        across, down = across * shrink, down * shrink
        left, top = draws.uniform(0.0, width - across), draws.uniform(0.0, height - down)
        return _resized(picture, (left, top, left + across, top + down), extent)


class ColorJitter(Augmentation):
    """Brightness, contrast and saturation each times a factor between 1 - strength and 1 + strength."""

    class Config(Augmentation.Config):
        brightness: kn.Partial = 0.3
        contrast: kn.Partial = 0.3
        saturation: kn.Partial = 0.3

    def __call__(self, picture: Any, extent: Extent, draws: Draws) -> Any:
        """Returns the picture in other colours."""
        del extent
        cfg, library = self.config, pillow("ImageEnhance")
        for kind, strength in (
            (library.Brightness, cfg.brightness),
            (library.Contrast, cfg.contrast),
            (library.Color, cfg.saturation),
        ):
            picture = kind(picture).enhance(1.0 + draws.uniform(-strength, strength))
        return picture
