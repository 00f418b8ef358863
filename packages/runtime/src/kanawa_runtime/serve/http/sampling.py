"""From a request's fields to the engine's: prompts as ids, and how tokens are drawn."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from kanawa.errors import UsageError

from kanawa_runtime.data.chats.picture_marks import PictureMarks
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.tokenizer_file import TokenizerError
from kanawa_runtime.serve.engine.request import EngineLimits, Grammar, SamplingParams
from kanawa_runtime.serve.http.errors import ApiError, invalid
from kanawa_runtime.serve.http.large_requests import LARGE
from kanawa_runtime.serve.http.protocol import TextRequest
from kanawa_runtime.serve.http.validation import TOO_LONG, too_long_prompt

#: Sampling fields that a model's generation_config.json may set defaults for.
DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
#: A token of any vocabulary in use has no more characters than this, except oddities such as runs of blanks.
_CHARACTERS_A_TOKEN = 128
_SEEDS = 2**32


@dataclasses.dataclass(frozen=True)
class PromptReader:
    """Tokenizes and measures prompts for one model; called in a worker thread."""

    tokenizer: Tokenizer
    limits: EngineLimits
    #: Encodes long texts, in another process.
    encode_large: Callable[[str], np.ndarray] | None = None
    #: Where pictures are in texts, of a model that reads them.
    pictures: PictureMarks | None = None

    def ids(
        self,
        prompt: str | Sequence[int] | np.ndarray,
        *,
        prefix: bool,
        field: str,
        truncate: int | None = None,
        num_pictures: int = 0,
    ) -> list[int]:
        """Returns the ids of a prompt, with what the tokenizer begins texts with where `prefix`.

        `truncate` leaves the last so many of them, -1 those that fit. Raises the 400 of a prompt that is too long, or
        hasn't the places of `num_pictures`.
        """
        if num_pictures and truncate is not None:
            why = "a prompt with pictures isn't cut; leave out what is too long"
            raise invalid(at="truncate_prompt_tokens", why=why)
        if isinstance(prompt, str):
            most = self.limits.max_length * _CHARACTERS_A_TOKEN
            if truncate is None and len(prompt) > most:
                # Tokenizing megabytes to count them would waste a thread's time.
                raise self._too_long(field, f"{len(prompt):,} characters")
            # Of what is cut off anyway, no more is tokenized than the rest may need.
            text = prompt[-most:]
            try:
                large = self.encode_large if len(text) >= LARGE else None
                encode = large or self.tokenizer.encode
                marks = self.pictures if num_pictures else None
                encoded: list[int] = (encode(text) if marks is None else marks.encode(text, encode)).tolist()
                begin = self.tokenizer.prefix_ids if prefix and encoded else ()
                ids = [*begin, *encoded] or [self.tokenizer.bos_id]
            except TokenizerError as error:
                raise invalid(field, f"it is empty, and {error}") from error
        elif isinstance(prompt, np.ndarray):
            # No longer than sequences may be: that is checked as it is read.
            ids = prompt.tolist()
        else:
            ids = list(prompt)
        if truncate is not None:
            most = self.limits.max_length - 1 if truncate == -1 else truncate
            ids = ids[len(ids) - most :] if 0 < most < len(ids) else ids
        if len(ids) >= self.limits.max_length:
            raise self._too_long(field, f"{len(ids):,} tokens")
        if self.pictures is not None:
            try:
                self.pictures.check_count(ids, num_pictures)
            except UsageError as error:
                raise invalid(field, str(error)) from error
        return ids

    def room(self, prompt: Sequence[int], asked: int | None, field: str, *, otherwise: int | None = None) -> int:
        """Returns how many tokens an answer may have: as requested, else `otherwise`, else what fits.

        Raises the 400 of a request for more than fit.
        """
        left = self.limits.max_length - len(prompt)
        if asked is None:
            return left if otherwise is None else min(left, otherwise)
        if asked > left:
            message = (
                f"the prompt has {len(prompt):,} tokens and {asked:,} new ones are asked for, together more than the "
                f"{self.limits.max_length:,} that this model is served with; ask for at most {left:,}, or shorten the "
                "prompt (truncate_prompt_tokens)"
            )
            raise invalid(field, message, TOO_LONG)
        return asked

    def _too_long(self, field: str, has: str) -> ApiError:
        return invalid(field, too_long_prompt(has, self.limits.max_length), TOO_LONG)


@dataclasses.dataclass(frozen=True)
class SamplingReader:
    """Makes the engine's sampling of a request's fields; `defaults` are the model's own."""

    tokenizer: Tokenizer
    limits: EngineLimits
    defaults: Mapping[str, Any]

    def read(
        self, request: TextRequest, *, max_tokens: int, logprobs: int | None, grammar: Grammar | None = None
    ) -> SamplingParams:
        """Returns the engine's sampling parameters; raises the ApiError of a field that doesn't fit the model."""
        if request.min_tokens > max_tokens:
            raise invalid(at="min_tokens", why=f"{request.min_tokens} is more than max_tokens, which is {max_tokens}")
        stop_ids = [] if request.ignore_eos else list(self.tokenizer.stop_ids)
        asked = {name: getattr(request, name) for name in DEFAULTED if getattr(request, name) is not None}
        chosen = {**self.defaults, **asked}
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=request.min_tokens,
            temperature=chosen.get("temperature", 1.0),
            top_k=max(0, chosen.get("top_k", 0)),
            top_p=chosen.get("top_p", 1.0),
            min_p=chosen.get("min_p", 0.0),
            # Seeds are 32 bits in the engine; another interface's may be any whole number.
            seed=None if request.seed is None else request.seed % _SEEDS,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            repetition_penalty=chosen.get("repetition_penalty", 1.0),
            stop_token_ids=tuple(dict.fromkeys([*stop_ids, *_as_tuple(request.stop_token_ids)])),
            logprobs=logprobs,
            prompt_logprobs=request.prompt_logprobs,
            logit_bias=self._biases(request.logit_bias),
            allowed_token_ids=None if request.allowed_token_ids is None else _as_tuple(request.allowed_token_ids),
            bad_words=self._bad_words(request.bad_words),
            grammar=grammar,
        )

    def _biases(self, by_text: Mapping[str, float]) -> dict[int, float]:
        biases = {}
        for name, bias in by_text.items():
            if not (name.isascii() and name.isdigit() and len(name) <= 10) or int(name) >= self.limits.vocab_size:
                last = self.limits.vocab_size - 1
                raise invalid(at="logit_bias", why=f"{name[:40]!r} is no token id, expected 0 to {last} as text")
            biases[int(name)] = bias
        return biases

    def _bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Returns the ids of each word at the start of a text and, where it differs, after a space."""
        sequences: list[tuple[int, ...]] = []
        for word in words:
            bare = word.lstrip() or word
            for text in (bare, f" {bare}"):
                ids = tuple(self.tokenizer.encode(text).tolist())
                if ids:
                    sequences.append(ids)
        return tuple(dict.fromkeys(sequences))


def _as_tuple(ids: Sequence[int] | np.ndarray) -> tuple[int, ...]:
    return tuple(ids.tolist() if isinstance(ids, np.ndarray) else ids)


def sampling_of_choice(sampling: SamplingParams, index: int) -> SamplingParams:
    """Returns the sampling of choice `index` of several: another seed, and a grammar of its own."""
    if index == 0:
        return sampling
    grammar = None if sampling.grammar is None else sampling.grammar.fork()
    seed = None if sampling.seed is None else (sampling.seed + index) % _SEEDS
    return dataclasses.replace(sampling, seed=seed, grammar=grammar)
