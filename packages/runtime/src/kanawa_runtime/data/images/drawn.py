"""Coloured shapes drawn on the spot: pictures to learn from without files, each a function of the seed and its number.

The class is the shape; its colours, size, place and a slight turn are noise.
"""

import math
from collections.abc import Sequence
from typing import Any

from kanawa.config import Count, Size

from kanawa_runtime.data.images.decode import pillow
from kanawa_runtime.data.images.draws import Draws
from kanawa_runtime.data.images.pictures import Pictures, PictureSource

#: Corners on the unit circle: (turn in whole circles, radius). A ring has none.
_STAR = tuple((i / 10, 1.0 if i % 2 == 0 else 0.4) for i in range(10))
_CROSS = tuple((k / 4 + d, r) for k in range(4) for d, r in ((-0.05, 1.0), (0.05, 1.0), (0.125, 0.45)))
SHAPES: dict[str, tuple[tuple[float, float], ...]] = {
    "circle": tuple((i / 48, 1.0) for i in range(48)),
    "cross": _CROSS,
    "half": tuple((i / 48, 1.0) for i in range(25)),
    "ring": (),
    "square": tuple((i / 4, 1.0) for i in range(4)),
    "star": _STAR,
    "triangle": tuple((i / 3, 1.0) for i in range(3)),
}
_DRAWN = 5
#: Drawn so many times larger and reduced, so that edges are smooth.
_FINER = 4


class DrawnPictures(Pictures):
    """`pictures` to train on and `held_out_pictures` others, each a function of the seed and its number."""

    class Config(Pictures.Config):
        height: Size = 32
        width: Size = 32
        pictures: Size = 10_000
        held_out_pictures: Count = 500

    @property
    def count(self) -> int:
        """As configured."""
        cfg = self.config
        counts = {"train": cfg.pictures, "validation": cfg.held_out_pictures}
        return int(counts.get(cfg.split, cfg.pictures + cfg.held_out_pictures))

    def draws(self, number: int) -> tuple[Draws, bool]:
        """Returns the random numbers of picture `number` of the split, and whether it is held out."""
        cfg = self.config
        if cfg.split == "all" and number >= cfg.pictures:
            # Of all pictures, those to train on come first.
            return Draws(cfg.seed, _DRAWN, 1, number - cfg.pictures), True
        is_held_out = cfg.split == "validation"
        return Draws(cfg.seed, _DRAWN, int(is_held_out), number), is_held_out


class DrawnShapes(DrawnPictures, PictureSource):
    """Shapes of `SHAPES`, told apart by their form alone."""

    class Config(DrawnPictures.Config, PictureSource.Config):
        pass

    @property
    def class_names(self) -> tuple[str, ...]:
        """The shapes."""
        return tuple(SHAPES)

    @property
    def content(self) -> Any:
        """The shapes."""
        return SHAPES

    def picture(self, number: int) -> tuple[Any, int]:
        """Returns a drawn picture and its shape."""
        cfg, (draws, _) = self.config, self.draws(number)
        target = draws.below(len(SHAPES))
        picture = drawn(tuple(SHAPES)[target], cfg.height, cfg.width, draws)
        return picture if cfg.channels == 3 else picture.convert("L"), target


def drawn(shape: str, height: int, width: int, draws: Draws) -> Any:
    """Returns a picture of a shape, in colours, of a size and at a place that are drawn at random."""
    # Dark on light, whatever the colours.
    ground = [176 + draws.below(80) for _ in range(3)]
    colour = [draws.below(136) for _ in range(3)]
    radius = min(height, width) * draws.uniform(0.28, 0.44)
    middle = tuple(draws.uniform(radius, extent - radius) for extent in (width, height))
    return painted(shape, (height, width), (ground, colour), radius, middle, draws.uniform(-0.05, 0.05))


def painted(
    shape: str,
    size: tuple[int, int],
    colours: tuple[Sequence[int], Sequence[int]],
    radius: float,
    middle: Sequence[float],
    turn: float,
) -> Any:
    """Returns a picture of (height, width) with a shape around `middle` (across, down), turned by parts of a circle.

    Colours are those of the ground and the shape; lengths are pixels.
    """
    image, canvas = pillow(), pillow("ImageDraw")
    height, width = size
    picture = image.new("RGB", (width * _FINER, height * _FINER), tuple(colours[0]))
    pen, corners = canvas.Draw(picture), SHAPES[shape]
    radius, (x, y) = radius * _FINER, (at * _FINER for at in middle)
    if corners:
        angles = [(2 * math.pi * (part + turn), distance * radius) for part, distance in corners]
        pen.polygon([(x + r * math.cos(a), y + r * math.sin(a)) for a, r in angles], tuple(colours[1]))
    else:
        pen.ellipse(
            [x - radius, y - radius, x + radius, y + radius], outline=tuple(colours[1]), width=round(radius * 0.35)
        )
    return picture.reduce(_FINER)
