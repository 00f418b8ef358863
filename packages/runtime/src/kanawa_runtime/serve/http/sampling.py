"""The sampling fields of OpenAI's and vLLM's requests, and what they ask of the engine."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.serve.engine.request import LEAST_PENALTY, EngineLimits, Grammar, SamplingParams
from kanawa_runtime.serve.http.errors import invalid
from kanawa_runtime.serve.http.fields import Either, Field, Flag, Listed, Mapped, Number, Text, Whole
from kanawa_runtime.serve.http.limits import ServerConfig

#: Names of other servers' and of OpenAI's own requests that change nothing here.
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "request_id")
IGNORED += ("prompt_cache_retention", "length_penalty")
#: Sampling fields that a model's generation_config.json may set defaults for.
DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_MOST_STOP_CHARACTERS = 1000
_MOST_BAD_WORDS = 256
_SEEDS = 2**32
_NO_BEAMS = "beam search isn't offered; n draws several choices"


def sampling_fields(limits: EngineLimits, config: ServerConfig) -> dict[str, Field]:
    """Returns the fields by name."""
    ids = Whole(0, limits.vocab_size - 1)
    stop = Text(_MOST_STOP_CHARACTERS, shortest=1)
    return {
        "n": Field(Whole(1, config.max_n), 1, help="choices a prompt"),
        "temperature": Field(Number(0, 100), help="0 is greedy"),
        "top_p": Field(Number(0, 1, above=True)),
        "top_k": Field(Whole(-1, 2**31 - 1), help="0 or -1: all"),
        "min_p": Field(Number(0, 1)),
        "seed": Field(Whole(-(2**63), 2**63 - 1), help="choice i of n draws from seed + i"),
        "min_tokens": Field(Whole(0, limits.max_length), 0, help="no stop before so many tokens"),
        "presence_penalty": Field(Number(-2, 2), 0.0),
        "frequency_penalty": Field(Number(-2, 2), 0.0),
        "repetition_penalty": Field(Number(LEAST_PENALTY, 100)),
        "stop": Field(Either((stop, Listed(stop, config.max_stop_strings))), help="texts that end an answer"),
        "stop_token_ids": Field(Listed(ids, 64), []),
        "include_stop_str_in_output": Field(Flag(), False),
        "ignore_eos": Field(Flag(), False),
        "bad_words": Field(Listed(Text(_MOST_STOP_CHARACTERS, shortest=1), _MOST_BAD_WORDS), []),
        "logit_bias": Field(Mapped(Number(-100, 100), 1024), {}, help="by token id"),
        "allowed_token_ids": Field(Listed(ids, limits.vocab_size, 1)),
        "prompt_logprobs": Field(Whole(0, limits.max_logprobs)),
        "truncate_prompt_tokens": Field(Whole(-1, limits.max_length), help="keep the last so many; -1: what fits"),
        "priority": Field(Whole(-(2**31), 2**31 - 1), 0, help="lower goes first"),
        "cache_salt": Field(Text(256, shortest=1), help="requests of another salt share no cached prefix"),
        "skip_special_tokens": Field(Flag(), True),
        "spaces_between_special_tokens": Field(Flag(), True),
        "return_token_ids": Field(Flag(), False),
        "return_tokens_as_token_ids": Field(Flag(), False),
        "use_beam_search": Field(Flag(), False, refused=_NO_BEAMS),
    }


def stop_strings(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the stop strings of a request, each once."""
    stop = body["stop"]
    return tuple(dict.fromkeys([stop] if isinstance(stop, str) else stop or ()))


@dataclasses.dataclass(frozen=True)
class SamplingReader:
    """Makes the engine's sampling of a request's fields; `defaults` are the model's own."""

    tokenizer: Tokenizer
    limits: EngineLimits
    defaults: Mapping[str, Any]

    def read(
        self, body: Mapping[str, Any], *, max_tokens: int, logprobs: int | None, grammar: Grammar | None = None
    ) -> SamplingParams:
        """Returns what the engine is asked for; raises the ApiError of a field that doesn't fit the model."""
        if body["min_tokens"] > max_tokens:
            raise invalid(at="min_tokens", why=f"{body['min_tokens']} is more than max_tokens, which is {max_tokens}")
        if logprobs is not None and logprobs > self.limits.max_logprobs:
            raise invalid(at="logprobs", why=f"{logprobs} is more than the {self.limits.max_logprobs} that are given")
        top_k = self._given(body, "top_k", 0)
        stop_ids = [] if body["ignore_eos"] else list(self.tokenizer.stop_ids)
        seed = body["seed"]
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=body["min_tokens"],
            temperature=self._given(body, "temperature", 1.0),
            top_k=max(0, top_k),
            top_p=self._given(body, "top_p", 1.0),
            min_p=self._given(body, "min_p", 0.0),
            # Seeds are 32 bits in the engine; another interface's may be any whole number.
            seed=None if seed is None else seed % _SEEDS,
            presence_penalty=body["presence_penalty"],
            frequency_penalty=body["frequency_penalty"],
            repetition_penalty=self._given(body, "repetition_penalty", 1.0),
            stop_token_ids=tuple(dict.fromkeys(stop_ids + body["stop_token_ids"])),
            logprobs=logprobs,
            prompt_logprobs=body["prompt_logprobs"],
            logit_bias=self._biases(body["logit_bias"]),
            allowed_token_ids=None if body["allowed_token_ids"] is None else tuple(body["allowed_token_ids"]),
            bad_words=bad_words(self.tokenizer, body["bad_words"]),
            grammar=grammar,
        )

    def _given(self, body: Mapping[str, Any], name: str, otherwise: Any) -> Any:
        return self.defaults.get(name, otherwise) if body[name] is None else body[name]

    def _biases(self, given: Mapping[str, float]) -> dict[int, float]:
        biases = {}
        for name, bias in given.items():
            if not (name.isascii() and name.isdigit() and len(name) <= 10) or int(name) >= self.limits.vocab_size:
                last = self.limits.vocab_size - 1
                raise invalid(at="logit_bias", why=f"{name[:40]!r} is no token id, expected 0 to {last} as text")
            biases[int(name)] = bias
        return biases


def choice_of(sampling: SamplingParams, index: int) -> SamplingParams:
    """Returns the sampling of choice `index` of several: another seed, and a grammar of its own."""
    if index == 0:
        return sampling
    grammar = None if sampling.grammar is None else sampling.grammar.fork()
    seed = None if sampling.seed is None else (sampling.seed + index) % _SEEDS
    return dataclasses.replace(sampling, seed=seed, grammar=grammar)


def bad_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Returns the ids of each word at the start of a text and, where it differs, after a space."""
    sequences: list[tuple[int, ...]] = []
    for word in words:
        bare = word.lstrip() or word
        for text in (bare, f" {bare}"):
            ids = tuple(tokenizer.encode(text).tolist())
            if ids:
                sequences.append(ids)
    return tuple(dict.fromkeys(sequences))
