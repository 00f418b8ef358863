"""Held-out pictures with a text about them, of which the model writes the end."""

from typing import Any

import numpy as np
from kanawa.contracts import DataSource, Environment, ReadsPictures

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.media import Medium, png
from kanawa_runtime.serve.engine.picture import Picture
from kanawa_runtime.serve.examples.sampler import HeldOutSampler, reduced
from kanawa_runtime.serve.generate import Generator, SamplingConfig

#: Written beyond the tokens of the answer that is known.
_MORE = 4


class AnswerSampler(HeldOutSampler):
    """Shows pictures with what is asked or said before, what is to be answered, and what the model writes."""

    about = "Held-out pictures, what is asked and its answer; what the model writes comes after the arrow."
    count = 8

    def __init__(self, model: Any, tokenizer: Tokenizer, source: DataSource, environment: Environment) -> None:
        """Takes a model that is `ReadsPictures`."""
        super().__init__(source, environment)
        self._model, self._tokenizer = model, tokenizer
        assert isinstance(model, ReadsPictures)
        self._tokens = type(model).picture_tokens(model.config)
        self._generator: Generator | None = None

    def shown(self, rows: list[dict[str, np.ndarray]], params: Any, state: Any) -> list[Medium]:
        """Returns the first picture of each row, with its texts."""
        if self._generator is None:
            self._generator = Generator(
                self._model, params, state=state, environment=self._environment, known=self._tokenizer.known
            )
        else:
            self._generator.load(params, state)
        token_id, each = self._tokens.token_id, self._tokens.num_tokens
        prompts, answers, pictures = [], [], []
        for row in rows:
            weighted = np.flatnonzero(row["loss_weights"])
            first = int(weighted[0])
            # The first answer, which is the first run of weighted targets.
            end = next((i for i in range(first, len(row["loss_weights"])) if not row["loss_weights"][i]), None)
            prompts.append(row["input_ids"][: first + 1].tolist())
            answers.append(row["target_ids"][first:end].tolist())
            count = prompts[-1].count(token_id) // each
            pictures.append([Picture.of(np.asarray(one)) for one in row["images"][:count]])
        most = max(map(len, answers)) + _MORE
        written = self._generator.stream(
            prompts, most, SamplingConfig(temperature=0.0), self._tokenizer.stop_ids, every=most, pictures=pictures
        )
        *_, last = written
        self._generator.unload()
        made = []
        for row, prompt, answer, one in zip(rows, prompts, answers, last, strict=True):
            asked, known, said = (self._text(ids) for ids in (prompt, answer, one.token_ids))
            made.append(png(reduced(np.asarray(row["images"][0])), f"{asked} {known} → {said}"))
        return made

    def forget(self) -> None:
        """Frees the generator and the rows."""
        super().forget()
        self._generator = None

    def _text(self, ids: list[int]) -> str:
        dropped = {self._tokens.token_id, *self._tokenizer.stop_ids}
        return " ".join(self._tokenizer.decode(np.asarray([i for i in ids if i not in dropped], np.int32)).split())
