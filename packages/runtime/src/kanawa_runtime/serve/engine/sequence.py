"""One request on its way through the engine, as the host sees it."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
from kanawa.errors import UsageError

from kanawa_runtime.serve.engine import random_numbers
from kanawa_runtime.serve.engine.request import OnOutput, Request, TokenLogprobs
from kanawa_runtime.serve.engine.rows import (
    ADAPTER,
    CUT,
    HAS_TABLES,
    LOGPROBS,
    MASK,
    MIN_TOKENS,
    MOST_STOPS,
    RANDOM,
    REPETITION,
    STOPS,
    TABLES,
    TEMPERATURE,
    TOP_K,
    float_bits,
)


@dataclasses.dataclass(eq=False, slots=True, weakref_slot=True)
class Sequence:
    """A request's tokens, and how far host and device are with them.

    `tokens` are the prompt and what has come back from the device; `pending` more have been asked of it. The cache
    holds the first `computed` tokens once the device is done with what it was given.
    """

    request: Request
    on_output: OnOutput
    arrival: int
    tokens: list[int]
    prompt_length: int
    seed: int
    stops: frozenset[int]
    #: What it needs of a step besides the likeliest token (see `rows`).
    flags: int
    root: bytes
    #: Digests of the full pages of its tokens, as far as they were asked for.
    digests: list[bytes]
    bad_words: tuple[tuple[int, ...], ...]
    pages: list[int] = dataclasses.field(default_factory=list)
    described: int = 0
    slot: int = -1
    computed: int = 0
    #: Tokens to take in before it can be decoded: the prompt, and after a preemption what was generated besides.
    target: int = 0
    pending: int = 0
    cached_tokens: int = 0
    #: Of time.monotonic: when it first left the queue.
    scheduled_at: float | None = None
    told_cached: bool = False
    finished: bool = False
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    #: Its adapter's seat and slot in the bank; slot 0 is none.
    seat: Any = None
    adapter: int = 0
    #: Whether its next tokens are guessed.
    speculates: bool = False
    #: Pages of its prompt that another engine has filled, until they are written.
    given: Any = None
    #: Whether its pages outlive it, for another engine.
    keeps_pages: bool = False
    #: The block of its random numbers that it is in, as the bits of floats.
    _uniforms: np.ndarray | None = None
    _block: int = -1

    @property
    def order(self) -> tuple[int, int]:
        """Who goes first; who is preempted last."""
        return self.request.priority, self.arrival

    @property
    def length(self) -> int:
        """Tokens there are, those still being computed included."""
        return len(self.tokens) + self.pending

    @property
    def generated(self) -> int:
        """New tokens, those still being computed included."""
        return self.length - self.prompt_length

    @property
    def is_prefilled(self) -> bool:
        """Whether the cache has all but its last token."""
        return self.computed >= self.target

    @property
    def waits_for_itself(self) -> bool:
        """Whether its next mask or guesses depend on its last token, which the host has to see first."""
        return self.speculates or bool(self.flags & MASK)

    def uniform(self, index: int) -> int:
        """Returns the random number of new token `index`, as the bits of a float in [0, 1)."""
        block, at = divmod(index, random_numbers.BLOCK)
        if block != self._block or self._uniforms is None:
            self._uniforms, self._block = random_numbers.block(self.seed, block).view(np.int32), block
        return int(self._uniforms[at])

    def write_row(self, row: np.ndarray) -> None:
        """Writes what never changes about it into a row of columns."""
        sampling = self.request.sampling
        # A grammar may leave nothing but stop tokens, whatever the least number is: `allowed_bits` sees to both.
        row[MIN_TOKENS] = 0 if sampling.grammar is not None else sampling.min_tokens
        row[TOP_K] = sampling.top_k
        row[HAS_TABLES], row[ADAPTER] = self.flags & TABLES != 0, self.adapter
        row[TEMPERATURE : REPETITION + 1] = float_bits(
            (
                sampling.temperature,
                sampling.top_p,
                sampling.min_p,
                sampling.presence_penalty,
                sampling.frequency_penalty,
                sampling.repetition_penalty,
            )
        )
        stops = sorted(self.stops)[:MOST_STOPS]
        row[STOPS] = -1
        row[STOPS.start : STOPS.start + len(stops)] = stops


def needs(request: Request) -> int:
    """Returns what a request asks of a step, as the flags of `rows`."""
    sampling = request.sampling
    penalties = (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty - 1.0)
    fixed = sampling.logit_bias or sampling.allowed_token_ids is not None
    single = any(len(word) == 1 for word in sampling.bad_words)
    flags = TABLES if any(penalties) or fixed or single or sampling.min_tokens else 0
    if sampling.temperature > 0:
        flags |= RANDOM
        if sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0:
            flags |= CUT
    flags |= LOGPROBS if sampling.logprobs is not None else 0
    follows = any(len(word) > 1 for word in sampling.bad_words)
    many_stops = sampling.min_tokens > 0 and len(sampling.stop_token_ids) > MOST_STOPS
    return flags | (MASK if sampling.grammar is not None or follows or many_stops else 0)


def tables(sequence: Sequence, vocab: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the counts of its new tokens, which ids are in the prompt, and its bias, each [vocab]."""
    sampling, prompt = sequence.request.sampling, sequence.prompt_length
    counts = np.bincount(np.asarray(sequence.tokens[prompt:], np.int64), minlength=vocab).astype(np.int32)
    in_prompt = np.zeros(vocab, bool)
    in_prompt[sequence.tokens[:prompt]] = True
    bias = np.zeros(vocab, np.float32)
    if sampling.allowed_token_ids is not None:
        bias[:] = -np.inf
        bias[list(sampling.allowed_token_ids)] = 0.0
    for token, value in sampling.logit_bias.items():
        bias[token] += value
    for word in sampling.bad_words:
        if len(word) == 1:
            bias[word[0]] = -np.inf
    return counts, in_prompt, bias


def allowed_bits(sequence: Sequence, words: int) -> np.ndarray:
    """Returns the packed mask of what may follow its last token; all of its tokens have to be known.

    Raises UsageError where a grammar ran out of its bounds, or nothing may follow.
    """
    sampling = sequence.request.sampling
    bits = np.full(words, -1, np.int32)
    if sampling.grammar is not None:
        given = sampling.grammar.allowed()
        bits[: given.shape[0]] = given
        bits[given.shape[0] :] = 0
    new = sequence.tokens[sequence.prompt_length :]
    _ban(bits, [word[-1] for word in sequence.bad_words if tuple(new[len(new) - len(word) + 1 :]) == word[:-1]])
    if len(new) < sampling.min_tokens:
        without = bits.copy()
        _ban(without, sequence.stops)
        bits = without if without.any() else bits
    if not bits.any():
        message = "no token may follow: the grammar, the bad words and the allowed tokens exclude each other"
        raise UsageError(message)
    return bits


def _ban(bits: np.ndarray, tokens: Iterable[int]) -> None:
    unsigned = bits.view(np.uint32)
    for token in tokens:
        unsigned[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)


def logprobs_of(details: Any, count: int, num_logprobs: int) -> TokenLogprobs:
    """Returns what a packed row [2 + 2n] says, with the first `count` of the likeliest tokens."""
    floats = details.view(np.float32)
    ids = details[2 : 2 + count].tolist()
    values = floats[2 + num_logprobs : 2 + num_logprobs + count].tolist()
    return TokenLogprobs(logprob=float(floats[0]), rank=int(details[1]), top=tuple(zip(ids, values, strict=True)))
