"""Makes pictures for many requests at once."""

from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
from kanawa.contracts import MakesPictures
from kanawa.errors import UsageError

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.serve.engine.batching import BatchingEngine
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.request import EngineLimits, RequestError
from kanawa_runtime.serve.pictures.maker import ROWS, Asked, PictureMaker, is_guided
from kanawa_runtime.serve.pictures.wishes import Wishes


class Drawing(NamedTuple):
    """A picture to make, and how far it goes towards its wish: 1 is the model as it is."""

    asked: Asked
    guidance: float


class DrawingEngine(BatchingEngine[Drawing, np.ndarray]):
    """An `Engine`: `draw` returns a picture, uint8 [height, width, channels], by its own seed and wish alone.

    A call has `max_sequences` rows, at most 16, whether all are asked for or one: a picture is the same in any batch.
    """

    def __init__(self, opened: OpenedRun, config: EngineConfig, tokenizer: Tokenizer | None) -> None:
        """Takes an opened model, and the tokenizer of its texts; raises UsageError for one that makes no pictures."""
        model: Any = opened.trainer.model
        if not isinstance(model, MakesPictures):
            message = f"{opened.directory}: {type(model).__qualname__} makes no pictures"
            raise UsageError(message)
        made = type(model).made_by(model.config)
        self.wishes = Wishes(made, None if made.prompt_length is None else tokenizer)
        self.wishes.check(str(opened.directory))
        rows = min(ROWS, config.max_sequences)
        limits = EngineLimits(
            max_sequences=rows,
            max_length=made.prompt_length or 1,
            max_queued=config.max_queued,
            vocab_size=1 if tokenizer is None else tokenizer.vocab_size,
            max_logprobs=0,
        )
        self._maker = PictureMaker(model, opened.params, opened.state, opened.environment, rows)
        super().__init__(limits, opened.params, opened.state)

    def wish(self, prompt: str) -> int | tuple[int, ...] | None:
        """Returns what the model takes for a prompt, a label or a text; raises RequestError for one it doesn't know."""
        made = self.wishes.made
        if not self.wishes.is_text and not made.num_labels:
            if prompt:
                message = "the model makes pictures of nothing that has a name; send an empty text"
                raise RequestError(message, "prompt")
            return None
        try:
            return self.wishes.of(prompt)
        except UsageError as error:
            raise RequestError(str(error), "prompt") from error

    def draw(self, drawing: Drawing, client: str = "") -> "Future[np.ndarray]":
        """Returns the future picture; raises QueueFullError."""
        return self.queue(drawing, is_guided(drawing.guidance), client)

    def compile_all(self) -> None:
        """Compiles the program with guidance, and the one without."""
        made = self.wishes.made
        wish = () if self.wishes.is_text else 0 if made.num_labels else None
        for guidance in (1.0, 2.0) if wish is not None else (1.0,):
            self.answer([Drawing(Asked(wish, 0), guidance)], is_guided(guidance))

    def answer(self, items: list[Drawing], bucket: bool) -> list[np.ndarray]:
        """Returns the pictures; those of a bucket all have guidance, or none has."""
        del bucket
        self._maker.load(self._params, self._state)
        return list(self._maker.make_each([item.asked for item in items], [item.guidance for item in items]))
