"""Questions about coloured shapes that are drawn on the spot: a chat about a picture without files."""

from typing import Any

import numpy as np
from kanawa.config import Size

from kanawa_runtime.data.images.drawn import SHAPES, DrawnPictures, painted
from kanawa_runtime.data.images.drawn_captions import COLOURS
from kanawa_runtime.data.images.in_rows import PicturedText, PicturesInRows


class DrawnQuestions(DrawnPictures, PicturesInRows):
    """A picture of two shapes, one beside the other, and "what colour is the star?" or "what is red?".

    A row is what a chat is without a template.
    """

    class Config(DrawnPictures.Config, PicturesInRows.Config):
        sequence_length: Size = 104

    @property
    def content(self) -> Any:
        """The shapes and colours."""
        return [SHAPES, COLOURS, self.tokenizer.digest]

    def asked(self, number: int) -> tuple[Any, str, str]:
        """Returns a picture (Pillow's), a question about it, and the answer."""
        cfg, (draws, _) = self.config, self.draws(number)
        shapes, colours = list(SHAPES), list(COLOURS)
        # Two of each, that differ.
        (first, second), (one, other) = (
            [from_.pop(draws.below(len(from_))) for _ in "ab"] for from_ in (shapes, colours)
        )
        ground = [200 + draws.below(56) for _ in range(3)]
        picture: Any = None
        for side, (shape, colour) in enumerate(((first, one), (second, other))):
            radius, half = min(cfg.height, cfg.width // 2) * draws.uniform(0.34, 0.46), cfg.width // 2
            middle = half / 2, draws.uniform(radius, cfg.height - radius)
            turn = draws.uniform(-0.05, 0.05)
            drawn = painted(shape, (cfg.height, half), (ground, COLOURS[colour]), radius, middle, turn)
            picture = picture or drawn.resize((cfg.width, cfg.height))
            picture.paste(drawn, (side * half, 0))
        if draws.below(2):
            return picture, f"what colour is the {second}?", other
        return picture, f"what is {one}?", first

    def pictured(self, number: int) -> PicturedText:
        """Returns the picture, then the question and its answer, of which the answer is learned.

        A message ends its line: that is how a model without a chat template of its own is served.
        """
        cfg, tokenizer = self.config, self.tokenizer
        picture, question, answer = self.asked(number)
        before = np.concatenate([tokenizer.prefix_ids, [cfg.image_token_id], tokenizer.encode(f"{question}\n")])
        after = np.append(tokenizer.encode(answer), tokenizer.eos_id)
        weights = np.concatenate([np.zeros(len(before), np.float32), np.ones(len(after), np.float32)])
        return PicturedText(np.concatenate([before, after]).astype(np.int32), weights, [picture])
