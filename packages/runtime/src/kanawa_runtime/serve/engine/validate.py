"""Checks of requests before they are queued; each message names field, value and limit."""

import collections
import math
from collections.abc import Iterable, Sequence
from typing import NoReturn

from kanawa_runtime.serve.engine.request import (
    MIN_REPETITION_PENALTY,
    EngineLimits,
    Request,
    RequestError,
    SamplingParams,
)

_MOST_IN_A_ROW = 2**31 - 1


def check_together(requests: Sequence[Request], limits: EngineLimits) -> None:
    """Raises RequestError where two requests share an id, and for more than could ever wait and run at once."""
    name, times = next(iter(collections.Counter(request.id for request in requests).most_common(1)), ("", 0))
    if times > 1:
        _refuse("id", f"the id {name!r} is that of {times} requests; give each its own")
    most = limits.max_sequences + limits.max_queued
    if len(requests) > most:
        text = f"{len(requests)} requests are submitted together, and this engine holds {most}"
        _refuse("requests", f"{text}: max_sequences ({limits.max_sequences}) and max_queued ({limits.max_queued})")


def check_request(request: Request, limits: EngineLimits, *, prompt_logprobs: bool) -> None:
    """Raises RequestError naming the wrong field."""
    prompt, sampling, vocab = request.prompt_ids, request.sampling, limits.vocab_size
    if not prompt:
        _refuse("prompt_ids", "the prompt is empty; give at least one token")
    _check_ids("prompt_ids", prompt, vocab)
    if len(prompt) >= limits.max_length:
        text = f"the prompt has {len(prompt)} tokens, and sequences at most {limits.max_length} with one new token"
        _refuse("prompt_ids", f"{text}; shorten it")
    if sampling.max_tokens < 1:
        _refuse("max_tokens", f"max_tokens is {sampling.max_tokens}, expected at least 1")
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        text = f"min_tokens is {sampling.min_tokens}, expected 0 to max_tokens ({sampling.max_tokens})"
        _refuse("min_tokens", text)
    for name, value in (("min_tokens", sampling.min_tokens), ("top_k", sampling.top_k)):
        # A row travels to the device in int32.
        if value > _MOST_IN_A_ROW:
            _refuse(name, f"{name} is {value}, expected at most {_MOST_IN_A_ROW}")
    _check_sampling(sampling)
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(sampling, name)
        if value is not None and not 0 <= value <= limits.max_logprobs:
            _refuse(name, f"{name} is {value}, expected 0 to {limits.max_logprobs}")
    if sampling.prompt_logprobs is not None and not prompt_logprobs:
        _refuse("prompt_logprobs", "this engine was built without prompt_logprobs; set prompt_logprobs in its config")
    _check_ids("stop_token_ids", sampling.stop_token_ids, vocab)
    _check_ids("logit_bias", sampling.logit_bias, vocab)
    if sampling.allowed_token_ids is not None:
        if not sampling.allowed_token_ids:
            _refuse("allowed_token_ids", "allowed_token_ids is empty, so that nothing could be drawn; leave it out")
        _check_ids("allowed_token_ids", sampling.allowed_token_ids, vocab)
    for word in sampling.bad_words:
        if not word:
            _refuse("bad_words", "bad_words holds a word without tokens")
        _check_ids("bad_words", word, vocab)


def _check_sampling(sampling: SamplingParams) -> None:
    ranges = {
        "temperature": (0.0, math.inf),
        "top_p": (0.0, 1.0),
        "min_p": (0.0, 1.0),
        "repetition_penalty": (MIN_REPETITION_PENALTY, math.inf),
        "presence_penalty": (-2.0, 2.0),
        "frequency_penalty": (-2.0, 2.0),
    }
    above = ("top_p",)
    for name, (low, high) in ranges.items():
        value = getattr(sampling, name)
        if not math.isfinite(value) or not low <= value <= high or (name in above and value <= low):
            start = f"above {low:g}" if name in above else f"at least {low:g}"
            end = "" if high == math.inf else f" and at most {high:g}"
            _refuse(name, f"{name} is {value}, expected a number {start}{end}")
    if sampling.top_k < -1:
        _refuse("top_k", f"top_k is {sampling.top_k}, expected at least 1, or 0 or -1 for no cut")
    bad = [value for value in sampling.logit_bias.values() if math.isnan(value) or value == math.inf]
    if bad:
        _refuse("logit_bias", f"logit_bias holds {bad[0]}, expected finite numbers or minus infinity")


def _check_ids(name: str, ids: Iterable[int], vocab: int) -> None:
    for token in ids:
        if not 0 <= token < vocab:
            _refuse(name, f"{name} holds the token id {token}; the model's are 0 to {vocab - 1}")


def _refuse(field: str, message: str) -> NoReturn:
    raise RequestError(message, field)
