"""The engine's contract: requests and their sampling, the outputs of each step, and what an engine refuses."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import numpy as np
from kanawa.errors import UsageError

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
    `priority` goes first; equal ones go in the order they came. `deadline`, of time.monotonic, ends it as "abort".
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    adapter: str | None = None
    cache_salt: str = ""
    priority: int = 0
    deadline: float | None = None


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """The sizes of an engine: a request beyond them is refused before it is queued."""

    max_sequences: int
    max_length: int
    max_queued: int
    vocab_size: int
    max_logprobs: int


class Engine(Protocol):
    """Generates for many requests at once on a thread of its own; every method may be called from any thread."""

    @property
    def is_alive(self) -> bool:
        """Whether it serves: it was started, was not stopped, and has not failed."""

    @property
    def limits(self) -> EngineLimits:
        """Its sizes."""

    def start(self) -> None:
        """Compiles every program it will ever run, then begins to serve; returns once it is ready."""

    def submit(self, request: Request, on_output: OnOutput) -> None:
        """Queues a request. Raises QueueFullError, and RequestError naming field and limit; never waits."""

    def check_room(self) -> None:
        """Raises QueueFullError where any request would be refused now."""

    def cancel(self, request_id: str) -> None:
        """Ends a request as "abort" within two steps; an unknown id is ignored."""

    def stats(self) -> Mapping[str, float]:
        """Returns gauges and counters by the names of vLLM's metrics without their prefix, at no cost to a step."""

    def load(self, params: object, state: object = None) -> None:
        """Takes other weights between two steps, compiles nothing, and evicts cached prefixes.

        `state` is the model's, trained together with them; None leaves it as it is.
        """

    def drain(self, seconds: float) -> bool:
        """Refuses new requests and waits for the others; returns whether all ended in time."""

    def stop(self) -> None:
        """Ends running requests as "abort", and the thread."""
