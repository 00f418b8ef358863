"""One request on its way through the engine, as the host sees it."""

import dataclasses
import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
from kanawa.errors import UsageError

from kanawa_runtime.serve.engine.adapter_slots import LoraSlot
from kanawa_runtime.serve.engine.page_pool import root_digest
from kanawa_runtime.serve.engine.picture import PlacedPicture
from kanawa_runtime.serve.engine.request import OnOutput, RemotePrefill, Request, TokenLogprobs
from kanawa_runtime.serve.engine.rows import (
    ADAPTER,
    CUT,
    HAS_TABLES,
    LOGPROBS,
    MASK,
    MAX_STOPS,
    MIN_TOKENS,
    RANDOM,
    REPETITION,
    SHIFT,
    STOPS,
    TABLES,
    TEMPERATURE,
    TOP_K,
    float_bits,
)

#: Random numbers drawn at a time.
BLOCK = 64


def random_block(seed: int, index: int) -> np.ndarray:
    """Returns random numbers BLOCK * index and the following, fp32 in [0, 1), by Philox (Salmon et al. 2011).

    Drawn on the host, ahead of time: a generator on the device would be compiled into every program. Raw bits and not
    NumPy's distributions, which may change between its versions.
    """
    raw = np.random.Philox(key=np.array([seed & 2**64 - 1, index], np.uint64)).random_raw(BLOCK)
    # 24 bits are what a float32 holds below 1.
    return (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def random_numbers(seed: int, count: int) -> np.ndarray:
    """Returns the random numbers that draw a request's first `count` tokens, fp32."""
    blocks = [random_block(seed, index) for index in range(-(-count // BLOCK))]
    return np.concatenate([np.zeros(0, np.float32), *blocks])[:count]


@dataclasses.dataclass(eq=False, slots=True, weakref_slot=True)
class Sequence:
    """A request's tokens, and how far host and device are with them.

    `tokens` are the prompt and the new tokens that have come back from the device; `pending` more have been asked of
    it. The KV cache holds the first `computed` tokens once the device has run what was sent to it.
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
    bad_words: tuple[tuple[int, ...], ...]
    #: Digests of the full pages of its tokens, as far as they were needed.
    digests: list[bytes] = dataclasses.field(default_factory=list)
    pages: list[int] = dataclasses.field(default_factory=list)
    #: How many of its pages the pool knows by content.
    num_cached_pages: int = 0
    slot: int = -1
    computed: int = 0
    #: Tokens to prefill before it can be decoded: the prompt, and after a preemption the new tokens.
    target: int = 0
    pending: int = 0
    cached_tokens: int = 0
    #: Of time.monotonic: when it first left the queue.
    scheduled_at: float | None = None
    #: Whether an output has been sent; the first one carries what is known of the prompt.
    has_output: bool = False
    finished: bool = False
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    lora_slot: LoraSlot | None = None
    #: Whether its next tokens are guessed.
    speculates: bool = False
    #: Pages of its prompt that another engine has computed, until they are written.
    remote_prefill: RemotePrefill | None = None
    #: Whether its pages outlive it, for another engine.
    hold_pages: bool = False
    pictures: tuple[PlacedPicture, ...] = ()
    #: Of the prompt's tokens, [tokens, streams], where the model has them; a later token is at its place and `shift`.
    coordinates: np.ndarray | None = None
    shift: int = 0
    #: The current block of its random numbers, as the bits of floats.
    _uniforms: np.ndarray | None = None
    _block: int = -1

    @classmethod
    def of(cls, request: Request, on_output: OnOutput, arrival: int, lora_slot: LoraSlot | None) -> "Sequence":
        """Returns the sequence of a request that hasn't been scheduled."""
        sampling = request.sampling
        return cls(
            request=request,
            on_output=on_output,
            arrival=arrival,
            tokens=list(request.prompt_ids),
            prompt_length=len(request.prompt_ids),
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            stops=frozenset(sampling.stop_token_ids),
            flags=sampling_flags(request),
            root=root_digest(request.cache_salt, None if lora_slot is None else lora_slot.salt),
            bad_words=tuple(word for word in sampling.bad_words if len(word) > 1),
            lora_slot=lora_slot,
        )

    @property
    def order(self) -> tuple[int, int]:
        """Lower is scheduled first, and preempted last."""
        return self.request.priority, self.arrival

    @property
    def length(self) -> int:
        """Number of tokens, those still being computed included."""
        return len(self.tokens) + self.pending

    @property
    def generated(self) -> int:
        """Number of new tokens, those still being computed included."""
        return self.length - self.prompt_length

    @property
    def is_prefilled(self) -> bool:
        """Whether the cache has all but its last token."""
        return self.computed >= self.target

    @property
    def needs_last_token(self) -> bool:
        """Whether its next mask or guesses depend on its last token, which the host has to see first."""
        return self.speculates or bool(self.flags & MASK)

    def uniform(self, index: int) -> int:
        """Returns the random number of new token `index`, as the bits of a float in [0, 1)."""
        block, at = divmod(index, BLOCK)
        if block != self._block or self._uniforms is None:
            self._uniforms, self._block = random_block(self.seed, block).view(np.int32), block
        return int(self._uniforms[at])

    def uniforms(self, first: int, count: int) -> list[int]:
        """Returns the random numbers of so many new tokens, as `uniform` does."""
        return [self.uniform(index) for index in range(first, first + count)]

    def write_row(self, row: np.ndarray) -> None:
        """Writes the columns that never change into a row."""
        sampling = self.request.sampling
        # A grammar may leave nothing but stop tokens, whatever min_tokens says: `allowed_bits` handles both.
        row[MIN_TOKENS] = 0 if sampling.grammar is not None else sampling.min_tokens
        row[TOP_K] = sampling.top_k
        row[HAS_TABLES] = self.flags & TABLES != 0
        row[ADAPTER] = 0 if self.lora_slot is None else self.lora_slot.index
        row[SHIFT] = self.shift
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
        stops = sorted(self.stops)[:MAX_STOPS]
        row[STOPS] = -1
        row[STOPS.start : STOPS.start + len(stops)] = stops


def sampling_flags(request: Request) -> int:
    """Returns what a request needs of a step, as the flags of `rows`."""
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
    many_stops = sampling.min_tokens > 0 and len(sampling.stop_token_ids) > MAX_STOPS
    return flags | (MASK if sampling.grammar is not None or follows or many_stops else 0)


def sampling_rows(sequence: Sequence, vocab: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
    """Returns the packed mask of the tokens that may follow; all tokens of the sequence have to be known.

    Raises UsageError where a grammar exceeds its limits, or no token may follow.
    """
    sampling = sequence.request.sampling
    bits = np.full(words, -1, np.int32)
    if sampling.grammar is not None:
        allowed = sampling.grammar.allowed()
        bits[: allowed.shape[0]] = allowed
        bits[allowed.shape[0] :] = 0
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
    """Returns the log-probabilities in a packed row [2 + 2n], with the first `count` of the likeliest tokens."""
    floats = details.view(np.float32)
    ids = details[2 : 2 + count].tolist()
    values = floats[2 + num_logprobs : 2 + num_logprobs + count].tolist()
    return TokenLogprobs(logprob=float(floats[0]), rank=int(details[1]), top=tuple(zip(ids, values, strict=True)))
