"""Samples of adapters and of the base model, by the serving engine; which adapters have a slot of it."""

import asyncio
import collections
import contextlib
import dataclasses
import functools
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from kanawa.contracts import StoredAdapter

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import Output, QueueFullError, Request, SamplingParams, TokenLogprobs
from kanawa_runtime.serve.training.tenants import TrainingError
from kanawa_runtime.serve.training.wire import Sampled, sample_bytes

#: What an address of this machine may be asked to draw at once.
_SEEDS = 2**31


@dataclasses.dataclass
class Sampler:
    """What a client samples from: an adapter, or the base model where it is None; `address` where it was saved."""

    name: str
    owner: str
    adapter: StoredAdapter | None = None
    address: str | None = None
    running: int = 0


@dataclasses.dataclass(frozen=True)
class SampleOrder:
    """What a client asks for: `count` continuations of a prompt."""

    prompt_ids: tuple[int, ...]
    count: int
    sampling: SamplingParams
    stop_texts: tuple[str, ...] = ()
    prompt_logprobs: bool = False
    #: Of the prompt's last so many tokens alone.
    last: int | None = None
    top_of_prompt: int = 0
    top: int = 0


class Samplers:
    """Samplers by name; an adapter gets a slot of the engine when it is sampled from, and loses it to newer ones."""

    def __init__(self, engine: LLMEngine, tokenizer: Tokenizer, slots: int) -> None:
        self._engine, self._tokenizer, self._slots = engine, tokenizer, slots
        self._resident: collections.OrderedDict[str, Sampler] = collections.OrderedDict()
        self._lock = asyncio.Lock()

    def check(self, order: SampleOrder) -> None:
        """Raises RequestError for what the engine could never do."""
        self._engine.check_request(Request(id="check", prompt_ids=order.prompt_ids, sampling=order.sampling))

    async def seat(self, sampler: Sampler) -> None:
        """Gives a sampler's adapter a slot; raises QueueFullError where all are sampled from."""
        if sampler.adapter is None:
            return
        async with self._lock:
            if sampler.name in self._resident:
                self._resident.move_to_end(sampler.name)
                return
            if len(self._resident) >= self._slots:
                idle = next((one for one in self._resident.values() if not one.running), None)
                if idle is None:
                    message = (
                        f"all {self._slots} adapters that the engine holds are sampled from (training.max_samplers)"
                    )
                    raise QueueFullError(message, 1.0)
                del self._resident[idle.name]
                await asyncio.to_thread(self._engine.remove_adapter, idle.name)
            await asyncio.to_thread(self._engine.add_adapter, sampler.name, sampler.adapter)
            self._resident[sampler.name] = sampler

    async def unseat(self, sampler: Sampler) -> None:
        """Takes the slot of a sampler that goes."""
        async with self._lock:
            if self._resident.pop(sampler.name, None) is not None:
                await asyncio.to_thread(self._engine.remove_adapter, sampler.name)

    async def draw(self, sampler: Sampler, order: SampleOrder, client: str) -> bytes:
        """Returns the answer's bytes once all continuations have ended; the sampler has a slot."""
        loop = asyncio.get_running_loop()
        seed = order.sampling.seed if order.sampling.seed is not None else secrets.randbelow(_SEEDS)
        parts = self._engine, self._tokenizer, order.stop_texts
        draws = [_Draw(*parts, loop.create_future()) for _ in range(order.count)]
        name = secrets.token_hex(8)
        try:
            for number, draw in enumerate(draws):
                draw.request = Request(
                    id=f"train-{name}-{number}",
                    prompt_ids=order.prompt_ids,
                    sampling=dataclasses.replace(order.sampling, seed=(seed + number) % _SEEDS),
                    adapter=None if sampler.adapter is None else sampler.name,
                    cache_salt=f"{sampler.owner}:{sampler.name}",
                    client=client,
                )
                self._engine.submit(draw.request, functools.partial(_pass_on, loop, draw))
            outputs = await asyncio.gather(*(draw.done for draw in draws))
        finally:
            for draw in draws:
                if draw.request is not None and not draw.has_ended:
                    self._engine.cancel(draw.request.id)
        return _answer(order, outputs)


def _pass_on(loop: asyncio.AbstractEventLoop, draw: "_Draw", output: Output) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(draw.take, output)


class _Draw:
    """One continuation: its outputs until it ends, or until a stop text is in it."""

    def __init__(
        self, engine: LLMEngine, tokenizer: Tokenizer, stop_texts: tuple[str, ...], done: "asyncio.Future[Output]"
    ) -> None:
        self.request: Request | None = None
        self.done, self.has_ended = done, False
        self._engine, self._tokenizer, self._stops = engine, tokenizer, stop_texts
        self._so_far: Output | None = None

    def take(self, output: Output) -> None:
        """Takes an output, in the loop."""
        self.has_ended = output.finish_reason is not None
        if self.done.done():
            return
        so_far = self._so_far = output if self._so_far is None else self._so_far.then(output)
        count = self._stopped_at(so_far) if self._stops else None
        if count is not None:
            cut = dataclasses.replace(
                so_far, token_ids=so_far.token_ids[:count], logprobs=(so_far.logprobs or ())[:count],
                finish_reason="stop", stop_token_id=None, stop_logprob=None,
            )  # fmt: skip
            if not self.has_ended and self.request is not None:
                self._engine.cancel(self.request.id)
            self.done.set_result(cut)
        elif self.has_ended:
            if so_far.finish_reason in ("stop", "length"):
                self.done.set_result(so_far)
            else:
                message = f"the sample ended as {so_far.finish_reason!r}: {so_far.error or 'the server is stopping'}"
                self.done.set_exception(TrainingError(message) if so_far.is_refused else QueueFullError(message, 1.0))

    def _stopped_at(self, output: Output) -> int | None:
        """Returns how many tokens it takes until a stop text is there; None where there is none."""
        known = self._tokenizer.vocab_size

        def text(count: int) -> str:
            return self._tokenizer.decode([i for i in output.token_ids[:count] if i < known])

        if not any(stop in text(len(output.token_ids)) for stop in self._stops):
            return None
        return next(n for n in range(1, len(output.token_ids) + 1) if any(stop in text(n) for stop in self._stops))


def _answer(order: SampleOrder, outputs: Sequence[Output]) -> bytes:
    sequences = []
    for output in outputs:
        ids, details = output.token_ids, output.logprobs or ()
        if output.stop_token_id is not None and output.stop_logprob is not None:
            # The stop token was drawn as the others were, and is learned from.
            ids, details = (*ids, output.stop_token_id), (*details, output.stop_logprob)
        top = _top(details, order.top) if order.top else None
        reason = "length" if output.finish_reason == "length" else "stop"
        sequences.append(Sampled(ids, [one.logprob for one in details], reason, top))
    known: Sequence[TokenLogprobs | None] = outputs[0].prompt_logprobs or ()
    start = 0 if order.last is None else len(known) - order.last
    shown = [one if place >= start else None for place, one in enumerate(known)]
    logprobs = [float("nan") if one is None else one.logprob for one in shown] if order.prompt_logprobs else None
    top = _top(shown, order.top_of_prompt) if order.top_of_prompt else None
    return sample_bytes(sequences, logprobs, top, max(output.cached_tokens for output in outputs))


def _top(details: Sequence[TokenLogprobs | None], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids and log-probabilities [length, count] of the likeliest; -1 and NaN where there are none."""
    ids, logprobs = np.full((len(details), count), -1, np.int32), np.full((len(details), count), np.nan, np.float32)
    for place, one in enumerate(details):
        for rank, (token, logprob) in enumerate(() if one is None else one.top[:count]):
            ids[place, rank], logprobs[place, rank] = token, logprob
    return ids, logprobs


def stops_of(stop: Any, tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Returns stop ids and stop texts of what a request says: None is the tokenizer's own, [] is none."""
    if stop is None:
        return tuple(tokenizer.stop_ids), ()
    listed = [stop] if isinstance(stop, str) else list(stop)
    texts = tuple(each for each in listed if isinstance(each, str))
    return tuple(each for each in listed if not isinstance(each, str)), texts
