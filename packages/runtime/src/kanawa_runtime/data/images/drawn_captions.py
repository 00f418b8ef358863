"""Coloured shapes drawn on the spot with captions: pairs to learn from without files.

Some pairs of colour and shape are never trained on: the held-out pictures are of those.
"""

from typing import Any, NamedTuple

from kanawa.config import Size

from kanawa_runtime.data.images.captioned import Captioned, CaptionedPictures
from kanawa_runtime.data.images.drawn import SHAPES, DrawnPictures, painted
from kanawa_runtime.data.images.draws import Draws

COLOURS = {
    "red": (205, 35, 35), "green": (30, 140, 50), "blue": (35, 60, 200),
    "purple": (130, 40, 160), "orange": (230, 120, 20), "black": (20, 20, 20),
}  # fmt: skip
#: Words and where the middle of a shape is: parts of the way across and down.
_PLACES = {"at the left": (0, 0.5), "at the right": (1, 0.5), "at the top": (0.5, 0), "at the bottom": (0.5, 1)}
_SIZES = {"small": 0.22, "large": 0.36}


class Label(NamedTuple):
    """What a picture shows."""

    colour: str
    shape: str


LABELS = tuple(Label(colour, shape) for colour in COLOURS for shape in SHAPES)
#: One shape of each colour.
UNSEEN = tuple(label for label in LABELS if tuple(SHAPES).index(label.shape) == 3 * tuple(COLOURS).index(label[0]) % 7)


class DrawnCaptions(DrawnPictures, CaptionedPictures):
    """Shapes with captions such as "a large red star at the left", of which size or place may be left unsaid.

    Labels are all pairs of a colour and a shape; `UNSEEN` ones are held out, so that naming them is zero-shot.
    """

    class Config(DrawnPictures.Config, CaptionedPictures.Config):
        sequence_length: Size = 48

    @property
    def label_texts(self) -> tuple[str, ...]:
        """Those of all labels."""
        return tuple(_named(f"{colour} {shape}") for colour, shape in LABELS)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The labels."""
        return tuple(f"{colour} {shape}" for colour, shape in LABELS)

    @property
    def content(self) -> Any:
        """The shapes, colours and words."""
        return [SHAPES, COLOURS, _PLACES, _SIZES, UNSEEN, self.tokenizer.digest]

    def captioned(self, number: int) -> Captioned:
        """Returns a drawn picture and its caption."""
        cfg, (draws, is_held_out) = self.config, self.draws(number)
        labels = UNSEEN if is_held_out else tuple(label for label in LABELS if label not in UNSEEN)
        label = labels[draws.below(len(labels))]
        size, place = (tuple(words)[draws.below(len(words))] for words in (_SIZES, _PLACES))
        picture = _picture(label, size, place, cfg.height, cfg.width, draws)
        said = [word for word in (size, place) if draws.uniform() < 0.7]
        text = _named(" ".join([*[w for w in said if w == size], *label, *[w for w in said if w == place]]))
        return Captioned(picture if cfg.channels == 3 else picture.convert("L"), text, LABELS.index(label))


def _named(words: str) -> str:
    return f"{'an' if words.startswith('o') else 'a'} {words}"


def _picture(label: Label, size: str, place: str, height: int, width: int, draws: Draws) -> Any:
    ground = [200 + draws.below(56) for _ in range(3)]
    colour = [max(0, min(255, value - 15 + draws.below(31))) for value in COLOURS[label.colour]]
    radius = _SIZES[size] * draws.uniform(0.9, 1.1)
    # In parts of the picture; a little off the place that is named.
    middle = [radius + (1 - 2 * radius) * part for part in _PLACES[place]]
    middle = [min(max(at + draws.uniform(-0.06, 0.06), radius), 1 - radius) for at in middle]
    side, turn = min(height, width), draws.uniform(-0.05, 0.05)
    extents = (middle[0] * width, middle[1] * height)
    return painted(label.shape, (height, width), (ground, colour), radius * side, extents, turn)
