"""Text or token ids after prompts, with an opened run's model."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from kanawa.contracts import CausalLM, Generated
from kanawa.errors import UsageError

from kanawa_runtime.api.questions import asking_ids, pictures_of
from kanawa_runtime.data.tokenizers.load import no_tokenizer, tokenizer_of
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.runs.tokenizer_file import TokenizerError
from kanawa_runtime.serve.generate import Completion, SamplingConfig
from kanawa_runtime.serve.growing_text import GrowingText
from kanawa_runtime.serve.unmasking import check_sampling, generator_of, prompt_to_fill_after

logger = logging.getLogger(__name__)

#: New tokens where nothing is said.
TOKENS = 128
Prompts = Sequence[str] | Sequence[list[int]]


def generated(
    opened: OpenedRun,
    prompts: Prompts,
    max_tokens: int,
    sampling: SamplingConfig,
    every: int,
    pictures: Sequence[Sequence[Any]] | None = None,
) -> Iterator[list[Generated]]:
    """Yields what there is after each prompt, after every `every` tokens; texts only grow.

    Raises UsageError for text without a tokenizer, ids outside of the vocabulary, prompts of both kinds, and pictures
    for a model that reads none.
    """
    if len({isinstance(prompt, str) for prompt in prompts}) != 1:
        message = f"expected prompts that are all text or all token ids, found {list(prompts)!r}"
        raise UsageError(message)
    is_text = isinstance(prompts[0], str)
    tokenizer = _tokenizer(opened, is_needed=is_text)
    if is_text and tokenizer is None:
        raise no_tokenizer(opened)
    model = opened.trainer.model
    if not isinstance(model, CausalLM):
        message = f"{opened.directory}: {type(model).__qualname__} continues no prompt; models that do are CausalLMs"
        raise UsageError(message)
    check_sampling(model, sampling)
    seen = None if pictures is None or not any(map(len, pictures)) else pictures_of(opened, prompts, pictures)
    if seen is not None and is_text:
        texts: Any = prompts
        ids = asking_ids(opened, tokenizer, texts, seen)
    else:
        ids = [_ids(prompt, tokenizer, model) for prompt in prompts]
    longest = max(map(len, ids)) + max_tokens
    if opened.trained_length is not None and longest > opened.trained_length:
        why = f"of {opened.trained_length}: what comes after those may make no sense"
        logger.warning("%d tokens are asked for, and the model was trained on sequences %s", longest, why)
    known = None if tokenizer is None else tokenizer.known
    generator = generator_of(model, opened.params, opened.state, opened.environment, known)
    stop = () if tokenizer is None else tokenizer.stop_ids
    each: Sequence[str | list[int]] = prompts
    growing = [_Growing(prompt, one, tokenizer) for prompt, one in zip(each, ids, strict=True)]
    pieces = generator.stream(ids, max_tokens, sampling, stop, every=every, pictures=seen)
    return _grown(growing, pieces)


def _grown(growing: list["_Growing"], pieces: Iterator[list[Completion]]) -> Iterator[list[Generated]]:
    last: list[Generated] = []
    for completions in pieces:
        last = [one.take(completion) for one, completion in zip(growing, completions, strict=True)]
        yield last
    yield [one.finish(piece) for one, piece in zip(growing, last, strict=True)]


class _Growing:
    """One prompt's text as tokens come."""

    def __init__(self, prompt: str | list[int], ids: list[int], tokenizer: Tokenizer | None) -> None:
        self._prompt = prompt
        self._text = None if tokenizer is None else GrowingText(tokenizer, ids)
        self._so_far = ""
        self._taken = 0

    def take(self, completion: Completion) -> Generated:
        """Returns what there is with a completion's new ids; an incomplete last character isn't in the text."""
        if self._text is not None:
            self._so_far += "".join(map(self._text.push, completion.token_ids[self._taken :]))
            self._taken = len(completion.token_ids)
        text = None if self._text is None else self._so_far
        return Generated(self._prompt, text, completion.token_ids, completion.logprobs)

    def finish(self, last: Generated) -> Generated:
        """Returns the last piece with what is left of an incomplete last character."""
        if self._text is None:
            return last
        return dataclasses.replace(last, text=self._so_far + self._text.finish())


def _tokenizer(opened: OpenedRun, *, is_needed: bool) -> Tokenizer | None:
    """Returns the run's tokenizer; where prompts are ids none is needed, and one that can't be read is ignored."""
    try:
        return tokenizer_of(opened)
    except TokenizerError:
        if is_needed:
            raise
        return None


def _ids(prompt: str | list[int], tokenizer: Tokenizer | None, model: CausalLM) -> list[int]:
    if isinstance(prompt, str):
        assert tokenizer is not None
        ids = prompt_to_fill_after(model, tokenizer, prompt)
        last = tokenizer.tokens[ids[-1]] if ids else b""
        if last and not last.strip(b" \t") and any(t.startswith(last) and t != last for t in tokenizer.tokens):
            why = "ends in a space, which this tokenizer writes with the next word: leave it out"
            logger.warning("the prompt %r %s", prompt[-40:], why)
        return ids
    vocab_size = model.config.vocab_size
    outside = [i for i in prompt if not 0 <= i < vocab_size]
    if outside:
        message = f"prompt {prompt}: {outside} are outside of the vocabulary, 0 to {vocab_size - 1}"
        raise UsageError(message)
    return list(prompt)
