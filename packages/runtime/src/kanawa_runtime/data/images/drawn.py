"""Coloured shapes drawn on the spot: pictures to learn from without files, each a function of the seed and its number.

The class is the shape; its colours, size, place and a slight turn are noise.
"""

import math
from typing import Any

from kanawa.config import Count, Size

from kanawa_runtime.data.images.decode import pillow
from kanawa_runtime.data.images.draws import Draws
from kanawa_runtime.data.images.pictures import PictureSource

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


class DrawnShapes(PictureSource):
    """Shapes of `SHAPES`, `pictures` to train on and `held_out_pictures` others."""

    class Config(PictureSource.Config):
        height: Size = 32
        width: Size = 32
        pictures: Size = 10_000
        held_out_pictures: Count = 500

    @property
    def class_names(self) -> tuple[str, ...]:
        """The shapes."""
        return tuple(SHAPES)

    @property
    def count(self) -> int:
        """As configured."""
        cfg = self.config
        return int(cfg.pictures if cfg.split == "train" else cfg.held_out_pictures)

    @property
    def content(self) -> Any:
        """The shapes."""
        return SHAPES

    def picture(self, number: int) -> tuple[Any, int]:
        """Returns a drawn picture and its shape."""
        cfg = self.config
        draws = Draws(cfg.seed, _DRAWN, ("train", "validation").index(cfg.split), number)
        target = draws.below(len(SHAPES))
        picture = drawn(tuple(SHAPES)[target], cfg.height, cfg.width, draws)
        return picture if cfg.channels == 3 else picture.convert("L"), target


def drawn(shape: str, height: int, width: int, draws: Draws) -> Any:
    """Returns a picture of a shape, in colours, of a size and at a place that are drawn at random."""
    image, canvas = pillow(), pillow("ImageDraw")
    # Dark on light, whatever the colours.
    ground = [176 + draws.below(80) for _ in range(3)]
    colour = [draws.below(136) for _ in range(3)]
    picture = image.new("RGB", (width * _FINER, height * _FINER), tuple(ground))
    pen, side = canvas.Draw(picture), min(height, width) * _FINER
    radius = side * draws.uniform(0.28, 0.44)
    middle = [draws.uniform(radius, extent * _FINER - radius) for extent in (width, height)]
    turn, corners = draws.uniform(-0.05, 0.05), SHAPES[shape]
    if corners:
        angles = [(2 * math.pi * (part + turn), distance * radius) for part, distance in corners]
        pen.polygon([(middle[0] + r * math.cos(a), middle[1] + r * math.sin(a)) for a, r in angles], tuple(colour))
    else:
        box = [middle[0] - radius, middle[1] - radius, middle[0] + radius, middle[1] + radius]
        pen.ellipse(box, outline=tuple(colour), width=round(radius * 0.35))
    return picture.reduce(_FINER)
