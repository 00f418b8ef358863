"""Digits drawn on the spot with a pen whose hand isn't steady: grey pictures to learn from without files."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from kanawa.config import Size

from kanawa_runtime.data.images.decode import pillow
from kanawa_runtime.data.images.drawn import DrawnPictures
from kanawa_runtime.data.images.draws import Draws
from kanawa_runtime.data.images.pictures import PictureSource

Points = tuple[tuple[float, float], ...]


def _arc(x: float, y: float, width: float, height: float, begin: float, end: float) -> Points:
    """Returns points of an ellipse around (x, y) from one angle to another, in degrees; 0 is right, 90 below."""
    count = 10
    angles = (math.radians(begin + (end - begin) * i / count) for i in range(count + 1))
    return tuple((x + width * math.cos(a), y + height * math.sin(a)) for a in angles)


#: The strokes of each digit in a box of width 1 and height 1.6, from the top left.
STROKES: tuple[tuple[Points, ...], ...] = (
    (_arc(0.5, 0.8, 0.45, 0.75, -90, 270),),
    (((0.2, 0.35), (0.55, 0.05), (0.55, 1.55)),),
    ((*_arc(0.5, 0.45, 0.42, 0.4, 190, 380), (0.05, 1.5), (0.95, 1.5)),),
    ((*_arc(0.45, 0.43, 0.42, 0.38, 200, 440), *_arc(0.45, 1.15, 0.47, 0.38, -80, 160)),),
    (((0.7, 1.55), (0.7, 0.05), (0.05, 1.1), (0.98, 1.1)),),
    (((0.9, 0.08), (0.2, 0.08), (0.14, 0.75), *_arc(0.45, 1.05, 0.48, 0.47, -100, 150)),),
    ((*((0.8, 0.05), (0.3, 0.5)), *_arc(0.5, 1.1, 0.43, 0.43, 190, 550)),),
    (((0.05, 0.08), (0.95, 0.08), (0.4, 1.55)),),
    (_arc(0.5, 0.42, 0.36, 0.36, 90, 450), _arc(0.5, 1.15, 0.45, 0.38, -90, 270)),
    ((*_arc(0.5, 0.5, 0.42, 0.42, 10, 370), (0.8, 1.1), (0.6, 1.55)),),
)
_WIDTH, _HEIGHT = 1.0, 1.6
#: Drawn so many times larger and reduced, so that edges are smooth.
_FINER = 4


class DrawnDigits(DrawnPictures, PictureSource):
    """Digits 0 to 9, light on dark; their place, size, slant, the pen's width and a tremble are noise."""

    class Config(DrawnPictures.Config, PictureSource.Config):
        height: Size = 16
        width: Size = 16
        channels: Literal[1, 3] = 1

    @property
    def class_names(self) -> tuple[str, ...]:
        """The digits."""
        return tuple(map(str, range(len(STROKES))))

    @property
    def content(self) -> Any:
        """The strokes."""
        return STROKES

    def picture(self, number: int) -> tuple[Any, int]:
        """Returns a drawn digit and which one it is."""
        cfg, (draws, _) = self.config, self.draws(number)
        digit = draws.below(len(STROKES))
        picture = written(STROKES[digit], cfg.height, cfg.width, draws)
        return picture.convert("RGB") if cfg.channels == 3 else picture, digit


def written(strokes: Sequence[Points], height: int, width: int, draws: Draws) -> Any:
    """Returns a grey picture (Pillow's) of strokes, written by a hand that `draws` moves."""
    image, canvas = pillow(), pillow("ImageDraw")
    picture = image.new("L", (width * _FINER, height * _FINER), 0)
    pen = canvas.Draw(picture)
    size = min(height, width) * _FINER
    scale = size * draws.uniform(0.42, 0.54)
    slant, turn = draws.uniform(-0.15, 0.25), draws.uniform(-0.12, 0.12)
    middle = [extent * _FINER / 2 + size * draws.uniform(-0.06, 0.06) for extent in (width, height)]
    thickness = size * draws.uniform(0.07, 0.12)
    ink = 190 + draws.below(66)
    for stroke in strokes:
        points = []
        for x, y in stroke:
            # Around the middle of the box, trembling, slanted, and turned.
            across = x - _WIDTH / 2 + draws.uniform(-0.02, 0.02) - slant * (y - _HEIGHT / 2)
            down = y - _HEIGHT / 2 + draws.uniform(-0.02, 0.02)
            turned = (
                across * math.cos(turn) - down * math.sin(turn),
                across * math.sin(turn) + down * math.cos(turn),
            )
            points.append((middle[0] + scale * turned[0], middle[1] + scale * turned[1]))
        pen.line(points, fill=ink, width=round(thickness), joint="curve")
        for x, y in (points[0], points[-1]):
            pen.ellipse([x - thickness / 2, y - thickness / 2, x + thickness / 2, y + thickness / 2], fill=ink)
    return picture.reduce(_FINER)
