"""The serving engine inside the training process: it takes the trainer's own arrays, without a disk between."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from kanawa.contracts import CausalLM, Environment
from kanawa.errors import KanawaError

from kanawa_runtime.data.permutation import stream_key
from kanawa_runtime.rollouts.handover import Handover
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.request import Output, SamplingParams


class RolloutError(KanawaError):
    """A rollout can't be made of a prompt."""


class Drawn(NamedTuple):
    """Ids with their log-probabilities, a stop token included, and why there are no more.

    `mask` says which of them the policy drew, None: all; an interaction wrote the others, and `episode` is its own.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    mask: tuple[bool, ...] | None = None
    episode: Any = None

    @property
    def num_drawn(self) -> int:
        """How many tokens the policy drew."""
        return len(self.ids) if self.mask is None else sum(self.mask)


class EngineSampler:
    """Draws completions from the model with the parameters of the last `load`; compiles everything once.

    Tokens are drawn at temperature 1 from the whole distribution: any other would not be the policy's. Each request
    has a seed of its own, and all of a call are submitted together, so that a repeated call returns the same bits.
    """

    def __init__(
        self, model: CausalLM, params: Any, state: Any, environment: Environment, config: EngineConfig
    ) -> None:
        # Late: the engine is a large part of this package, and a plan needs none of it.
        from kanawa_runtime.serve.engine.engine import LLMEngine

        self._handover = Handover(model, environment)
        own = self._handover.params(params), self._handover.state(state)
        self.engine = LLMEngine(model, *own, self._handover.environment, config)
        self.engine.start()

    def load(self, params: Any, state: Any) -> None:
        """Takes the trainer's weights; nothing may be drawing. In a gang all processes call at the same point."""
        self.engine.load(self._handover.params(params), self._handover.state(state))

    def draw(
        self, prompts: Sequence[tuple[int, ...]], new_tokens: Sequence[int], stops: tuple[int, ...],
        seeds: Sequence[int], *, logprobs: bool = True,
    ) -> list[Drawn]:  # fmt: skip
        """Returns a completion of each prompt by its seed, once all have ended; safe on any one thread.

        Those of `logprobs=False` have none, which saves a pass over the logits of each token.
        Raises RolloutError for one that the engine couldn't finish.
        """
        samplings = [
            SamplingParams(max_tokens=limit, seed=seed, stop_token_ids=stops, logprobs=0 if logprobs else None)
            for limit, seed in zip(new_tokens, seeds, strict=True)
        ]
        outputs = self.engine.generate(prompts, samplings)
        return [_drawn(output, row, prompts[row]) for row, output in enumerate(outputs)]

    @property
    def stats(self) -> dict[str, float]:
        """The engine's gauges and counters."""
        return dict(self.engine.stats())

    def close(self) -> None:
        """Ends the engine."""
        self.engine.stop()


def seed_of(*words: int, attempt: int = 0) -> int:
    """Returns the seed of a draw by the run's seed, the step and the row of the global batch: never by the process."""
    return stream_key(*words, attempt) if attempt else stream_key(*words)


def _drawn(output: Output, row: int, prompt: tuple[int, ...]) -> Drawn:
    if output.finish_reason not in ("stop", "length"):
        ended = f"ended as {output.finish_reason!r}: {output.error}"
        message = f"rollout {row}, of a prompt of {len(prompt)} tokens, {ended}"
        raise RolloutError(message)
    ids, logprobs = output.token_ids, tuple(one.logprob for one in output.logprobs or ())
    if output.stop_token_id is not None:
        ids = (*ids, output.stop_token_id)
        logprobs = (*logprobs, *(() if output.stop_logprob is None else (output.stop_logprob.logprob,)))
    return Drawn(ids, logprobs, str(output.finish_reason))
