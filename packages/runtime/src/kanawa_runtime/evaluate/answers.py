"""Answers that a model writes: the serving engine with the parameters at hand, ended by stop texts."""

import queue
from collections.abc import Callable, Sequence
from typing import Any

import jax
from kanawa.contracts import CausalLM, Environment
from kanawa.errors import KanawaError

from kanawa_runtime.data.permutation import stream_key
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.evaluate.task import Generation
from kanawa_runtime.rollouts.handover import decoding_shardings
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import EngineStoppedError, Output, Request, SamplingParams
from kanawa_runtime.serve.growing_text import GrowingText, text_after

#: How often a wait looks whether it should end.
_CHECK_SECONDS = 0.2
#: Sequences that are decoded side by side, and the page of their caches.
_SIDE_BY_SIDE = 32


class AnswerError(KanawaError):
    """The engine couldn't write an answer."""


class AnswerWriter:
    """Writes answers with one model; its programs are compiled at the first parameters and used for all.

    `longest` is the most tokens of a question and its answer together.
    """

    def __init__(self, model: CausalLM, tokenizer: Tokenizer, environment: Environment, longest: int) -> None:
        self._model, self._tokenizer, self._environment = model, tokenizer, environment
        self._longest = longest
        self._shardings: Any = decoding_shardings(model, environment)
        self._engine: LLMEngine | None = None

    def write(
        self,
        params: Any,
        state: Any,
        prompts: Sequence[tuple[int, ...]],
        generation: Generation,
        seed: int,
        until: Callable[[], bool] = lambda: False,
    ) -> list[str] | None:
        """Returns a text after each prompt, cut before the first stop text; None where `until()` cut it short.

        Each prompt draws from a seed of its own. Raises AnswerError for one that the engine refuses or fails on.
        """
        engine = self._loaded(params, state)
        outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        growing, ids = {}, {}
        for row, prompt in enumerate(prompts):
            name = str(row)
            sampling = SamplingParams(
                max_tokens=generation.max_tokens,
                temperature=generation.temperature,
                top_p=generation.top_p,
                top_k=generation.top_k,
                min_p=generation.min_p,
                seed=stream_key(seed, row),
                stop_token_ids=self._tokenizer.stop_ids,
            )
            growing[name] = GrowingText(self._tokenizer, prompt, generation.until)
            ids[name] = list[int]()
            engine.submit(Request(id=name, prompt_ids=prompt, sampling=sampling), outputs.put)
        running = set(ids)
        while running:
            try:
                output = outputs.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                if not engine.is_alive:
                    message = "the engine ended while it wrote answers; its log says why"
                    raise EngineStoppedError(message, 1.0) from None
                output = None
            if until():
                for name in running:
                    engine.cancel(name)
                engine.drain(60.0)
                self.close()
                return None
            if output is not None and output.request_id in running:
                self._take(engine, output, growing, ids, running)
        return [
            _cut(text_after(self._tokenizer, prompt, ids[str(row)]), generation.until)
            for row, prompt in enumerate(prompts)
        ]

    def _take(
        self,
        engine: LLMEngine,
        output: Output,
        growing: dict[str, GrowingText],
        ids: dict[str, list[int]],
        running: set[str],
    ) -> None:
        name = output.request_id
        if output.finish_reason == "error":
            message = f"the engine ended request {name} with an error: {output.error}"
            raise AnswerError(message)
        text = growing[name]
        for token in output.token_ids:
            ids[name].append(token)
            text.push(token)
        if text.stop is not None and output.finish_reason is None:
            engine.cancel(name)
        if text.stop is not None or output.finish_reason is not None:
            running.discard(name)

    def close(self) -> None:
        """Ends the engine; the next answers compile it again."""
        if self._engine is not None:
            self._engine.stop()
            self._engine = None

    def _loaded(self, params: Any, state: Any) -> LLMEngine:
        placed = params if self._shardings is None else jax.device_put(params, self._shardings)
        if self._engine is not None:
            self._engine.load(placed, state)
            return self._engine
        config = EngineConfig(
            max_length=self._longest, max_logprobs=0, prompt_logprobs=False, max_queued=2**20,
            max_sequences=_SIDE_BY_SIDE,
        )  # fmt: skip
        known = self._tokenizer.known
        self._engine = LLMEngine(self._model, placed, state, self._environment, config, known)
        self._engine.start()
        return self._engine


def _cut(text: str, until: Sequence[str]) -> str:
    """Returns the text before the first of the stop texts."""
    for end in until:
        text = text.split(end)[0]
    return text
