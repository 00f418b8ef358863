"""What goes into an engine and what comes out: requests, their sampling, and what they gained a step."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import numpy as np
from kanawa.errors import UsageError

#: Why a request ended: a stop token or string, `max_tokens` or the context's end, the client, an error of the engine.
FinishReason = Literal["stop", "length", "abort", "error"]
#: Of a repetition penalty: logits are divided by it in single precision, and by nearly nothing they are infinite.
MIN_REPETITION_PENALTY = 0.01


class RequestError(UsageError):
    """A request the engine can't take; `field` names which of its fields is at fault."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class QueueFullError(UsageError):
    """The engine's queue is full, or it is draining; `retry_after` says in how many seconds to ask again."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineStoppedError(QueueFullError):
    """The engine has ended, or died of an error that the message tells; it takes nothing any more."""


class Grammar(Protocol):
    """Says which tokens may come next in a structured output; one object follows one request.

    Both methods raise UsageError where the grammar runs out of its bounds: the request ends as "error".
    """

    def allowed(self) -> np.ndarray:
        """Returns which ids may follow as packed bits, int32 [ceil(vocab / 32)]: id i is bit i % 32 of word i // 32.

        Stop ids are among them where the output may end. They may be all there are, whatever `min_tokens` says.
        """

    def accept(self, token_id: int) -> bool:
        """Takes the token that was drawn, no stop id; returns whether the output is complete: nothing may follow it."""

    def fork(self) -> "Grammar":
        """Returns an independent copy, which speculation runs ahead with."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are drawn; every field is data of the compiled step, none a branch of it.

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
    """What a request gained: new ids in order, and at the end why. A stop token ends it and is not among the ids."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    finish_reason: FinishReason | None = None
    #: The stop token's id where one ended it, and its log-probability where those were asked for.
    stop_token_id: int | None = None
    stop_logprob: TokenLogprobs | None = None
    #: Of the prompt's tokens, how many were found in the prefix cache.
    cached_tokens: int = 0
    #: When it left the queue, of time.monotonic; on the first output at the latest, for metrics.
    scheduled_at: float | None = None
    error: str | None = None
    #: Whether the error is of what was asked: asked again, it would come again.
    is_refused: bool = False


#: Called on the engine's thread for each gain; it must return at once (hand over to a queue), and may not raise.
OnOutput = Callable[[Output], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """What an engine holds: a request beyond it is refused before it is queued."""

    max_sequences: int
    max_length: int
    max_queued: int
    vocab_size: int
    max_logprobs: int


class Engine(Protocol):
    """Generates for many requests at once on a thread of its own; every method may be called from any thread."""

    @property
    def is_alive(self) -> bool:
        """Whether it serves: it was started, and neither stopped nor ended by an error."""

    @property
    def limits(self) -> EngineLimits:
        """What it holds."""

    def start(self) -> None:
        """Compiles every program it will ever run, then begins to serve; returns once it is ready."""

    def submit(self, request: Request, on_output: OnOutput) -> None:
        """Queues a request. Raises QueueFullError, and RequestError naming field and limit; never waits."""

    def check_room(self) -> None:
        """Raises QueueFullError where a request would be refused now, whatever it asks for."""

    def cancel(self, request_id: str) -> None:
        """Ends a request as "abort" within two steps; an id that isn't there is no error."""

    def stats(self) -> Mapping[str, float]:
        """Returns gauges and counters by the names of vLLM's metrics without their prefix, at no cost to a step."""

    def load(self, params: object, state: object = None) -> None:
        """Takes other weights between two steps, compiles nothing, and forgets cached prefixes.

        `state` is the model's, as it was trained beside them; None keeps the one it has.
        """

    def drain(self, seconds: float) -> bool:
        """Refuses new requests and waits for the others; returns whether all ended in time."""

    def stop(self) -> None:
        """Ends what runs as "abort" and the thread."""
