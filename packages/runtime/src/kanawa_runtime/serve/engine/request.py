"""The engine's contract: requests and their sampling, the outputs of each step, and what an engine refuses."""

import collections
import dataclasses
import math
import queue
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, NoReturn, Protocol, runtime_checkable

import numpy as np
from kanawa.errors import UsageError

from kanawa_runtime.serve.engine.picture import Picture

#: Why a request ended: a stop token or string, `max_tokens` or the context's end, the client, an error of the engine.
FinishReason = Literal["stop", "length", "abort", "error"]
#: Logits are divided by a repetition penalty in single precision: by a smaller one they would be infinite.
MIN_REPETITION_PENALTY = 0.01


class RequestError(UsageError):
    """A request the engine can't serve; `field` names the field that is wrong."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class QueueFullError(UsageError):
    """The engine's queue is full, or it is draining; `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineStoppedError(QueueFullError):
    """The engine was stopped, or has failed with the error in the message; it takes no more requests."""


class Grammar(Protocol):
    """Which tokens may come next in a structured output; one object follows one request.

    Both methods raise UsageError where the grammar exceeds its limits: the request ends as "error".
    """

    def allowed(self) -> np.ndarray:
        """Returns which ids may follow as packed bits, int32 [ceil(vocab / 32)]: id i is bit i % 32 of word i // 32.

        Stop ids are among them where the output may end. They may be all there are, whatever `min_tokens` says.
        """

    def accept(self, token_id: int) -> bool:
        """Takes the token that was drawn, not a stop id; returns whether the output is complete."""

    def fork(self) -> "Grammar":
        """Returns an independent copy."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are drawn; every field is data of the compiled step, not a branch in it.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 cut nothing. A seed of None is drawn by the engine.
    `logprobs` n asks for the log-probability of each token and of the n likeliest; None for none. Penalties are those
    of OpenAI (presence, frequency: of generated tokens) and of CTRL (repetition: of prompt and generated tokens).
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: Grammar | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """One sequence to continue. `stop_token_ids` of its sampling hold the tokenizer's own unless it ignores them.

    `adapter` names one of the engine's LoRA adapters. Requests of another `cache_salt` never share pages. Lower
    `priority` goes first; equal ones go in the order they came. `client` names who asks: clients with requests have
    shares of the engine by their `weight`. `deadline`, of time.monotonic, ends it as "abort". `pictures` are those
    whose tokens the prompt has, in order.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    adapter: str | None = None
    cache_salt: str = ""
    priority: int = 0
    client: str = ""
    weight: int = 1
    deadline: float | None = None
    pictures: tuple[Picture, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """The log-probability of a token under the model's own distribution, and the likeliest tokens with theirs."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """The new tokens of a request in order, and why it ended. A stop token ends it and is not among the ids."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    finish_reason: FinishReason | None = None
    #: The stop token's id where one ended it, and its log-probability where wanted.
    stop_token_id: int | None = None
    stop_logprob: TokenLogprobs | None = None
    #: Of the prompt's tokens, how many were found in the prefix cache.
    cached_tokens: int = 0
    #: When it left the queue, of time.monotonic; on the first output at the latest, for metrics.
    scheduled_at: float | None = None
    error: str | None = None
    #: Whether the request itself caused the error: sent again, it would fail again.
    is_refused: bool = False

    def then(self, later: "Output") -> "Output":
        """Returns this output and the next one of the same request as one."""
        logprobs = (self.logprobs or ()) + (later.logprobs or ())
        return dataclasses.replace(
            later,
            token_ids=self.token_ids + later.token_ids,
            logprobs=logprobs if self.logprobs is not None or later.logprobs is not None else None,
            prompt_logprobs=self.prompt_logprobs if later.prompt_logprobs is None else later.prompt_logprobs,
            cached_tokens=max(self.cached_tokens, later.cached_tokens),
            scheduled_at=later.scheduled_at if self.scheduled_at is None else self.scheduled_at,
        )


@dataclasses.dataclass(frozen=True)
class RemotePrefill:
    """A prompt that another engine has prefilled: its first output, and the pages, an array a cache array.

    `layout` is that of the engine which asked, when it asked: other weights may have been loaded there since.
    """

    first: Output
    arrays: Sequence[np.ndarray]
    layout: str


#: Called on the engine's thread for each output; it must return at once (put it into a queue), and not raise.
OnOutput = Callable[[Output], None]


@dataclasses.dataclass(frozen=True)
class Submitted:
    """A request on its way to an engine's thread; with `hold_pages` its pages outlive it."""

    request: Request
    on_output: OnOutput
    hold_pages: bool = False
    remote_prefill: RemotePrefill | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """The sizes of an engine: a request beyond them is refused before it is queued."""

    max_sequences: int
    max_length: int
    max_queued: int
    vocab_size: int
    max_logprobs: int


class Engine(Protocol):
    """Answers many requests at once on a thread of its own; every method may be called from any thread."""

    @property
    def is_alive(self) -> bool:
        """Whether it serves: it was started, was not stopped, and has not failed."""

    @property
    def limits(self) -> EngineLimits:
        """Its sizes."""

    def start(self) -> None:
        """Compiles every program it will ever run, then begins to serve; returns once it is ready."""

    def check_room(self) -> None:
        """Raises QueueFullError where any request would be refused now."""

    def stats(self) -> Mapping[str, float]:
        """Returns gauges and counters by the names of vLLM's metrics without their prefix, at no cost to a step."""

    def load(self, params: object, state: object = None) -> None:
        """Takes other weights between two steps, compiles nothing, and evicts cached prefixes.

        `state` is the model's, trained together with them; None leaves it as it is.
        """

    def drain(self, seconds: float) -> bool:
        """Refuses new requests and waits for the others; returns whether all ended in time."""

    def stop(self) -> None:
        """Ends the thread; requests under way end with an error, or as "abort"."""


@runtime_checkable
class TextEngine(Engine, Protocol):
    """An engine that generates tokens."""

    def submit(self, request: Request, on_output: OnOutput) -> None:
        """Queues a request. Raises QueueFullError, and RequestError naming field and limit; never waits."""

    def cancel(self, request_id: str) -> None:
        """Ends a request as "abort" within two steps; an unknown id is ignored."""


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


def _check_ids(name: str, ids: Collection[int], vocab: int) -> None:
    for token in (min(ids), max(ids)) if ids else ():
        if not 0 <= token < vocab:
            _refuse(name, f"{name} holds the token id {token}; the model's are 0 to {vocab - 1}")


def _refuse(field: str, message: str) -> NoReturn:
    raise RequestError(message, field)


#: How often a wait checks that the engine is alive.
_CHECK_SECONDS = 1.0


def gather_outputs(
    engine: TextEngine, requests: Sequence[Request], outputs: "queue.SimpleQueue[Output]"
) -> list[Output]:
    """Returns each request's outputs as one, in order; raises EngineStoppedError where the engine ends before."""
    gathered = {request.id: Output(request_id=request.id) for request in requests}
    running = len(requests)
    while running:
        try:
            output = outputs.get(timeout=_CHECK_SECONDS)
        except queue.Empty:
            if not engine.is_alive and outputs.empty():
                message = f"the engine ended with {running} of {len(requests)} requests unanswered; its log says why"
                raise EngineStoppedError(message, _CHECK_SECONDS) from None
            continue
        gathered[output.request_id] = gathered[output.request_id].then(output)
        running -= output.finish_reason is not None
    return list(gathered.values())
