"""Samples of a model in training: a few tokens after the experiment's prompt, with the same draws each time."""

from typing import Any

import jax
from kanawa.contracts import (
    CausalLM,
    DataSource,
    Environment,
    ImageChatBatch,
    MakesPictures,
    ReadsPictures,
    Recognises,
    Transcribes,
)

from kanawa_runtime.data.speech.source import SpeechSource
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.serve.examples.answered import AnswerSampler
from kanawa_runtime.serve.examples.recognised import RecognitionSampler
from kanawa_runtime.serve.examples.sampler import Sampler
from kanawa_runtime.serve.examples.transcribed import TranscriptSampler
from kanawa_runtime.serve.generate import SamplingConfig, TextWriter
from kanawa_runtime.serve.growing_text import text_after
from kanawa_runtime.serve.pictures.samples import PictureSampler, subjects_of
from kanawa_runtime.serve.unmasking import generator_of, prompt_to_fill_after

#: Enough to see what it has learned, little enough to cost less than the evaluation beside it.
_TOKENS = 64


class TextSampler(Sampler):
    """Writes texts after the prompt."""

    def __init__(self, model: CausalLM, tokenizer: Tokenizer, prompt: str, environment: Environment) -> None:
        super().__init__(prompt)
        self._model, self._tokenizer, self._environment = model, tokenizer, environment
        self._generator: TextWriter | None = None

    def made(self, params: Any, state: Any) -> dict[str, Any]:
        """Returns the `text` after the prompt."""
        if self._generator is None:
            known = self._tokenizer.known
            self._generator = generator_of(self._model, params, state, self._environment, known)
        else:
            self._generator.load(params, state)
        prompt = prompt_to_fill_after(self._model, self._tokenizer, self.prompt)
        sampling = SamplingConfig(temperature=0.7, top_p=0.9)
        (completion,) = self._generator.generate([prompt], _TOKENS, sampling, self._tokenizer.stop_ids)
        self._generator.unload()
        return {"text": text_after(self._tokenizer, prompt, completion.token_ids)}

    def forget(self) -> None:
        """Frees the generator."""
        self._generator = None


def sampler_of(prompt: str, model: Any, source: DataSource, environment: Environment) -> Sampler | None:
    """Returns the sampler of an experiment; None of text without a prompt, of what can't be shown, and in a gang.

    In a gang every process would have to decode too, and one that failed would block the others.
    """
    if jax.process_count() > 1:
        return None
    if isinstance(model, MakesPictures):
        subjects = subjects_of(type(model).made_by(model.config), source)
        return PictureSampler(model, environment, subjects) if subjects else None
    if isinstance(model, Recognises):
        return RecognitionSampler(model, source, environment)
    if isinstance(model, Transcribes) and isinstance(source, SpeechSource):
        return TranscriptSampler(model, source, environment)
    tokenizer = source.tokenizer
    if not isinstance(tokenizer, Tokenizer) or not isinstance(model, CausalLM):
        return None
    if isinstance(model, ReadsPictures) and source.batch is ImageChatBatch:
        return AnswerSampler(model, tokenizer, source, environment)
    if not prompt:
        return None
    return TextSampler(model, tokenizer, prompt, environment)
