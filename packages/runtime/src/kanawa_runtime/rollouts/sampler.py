"""The serving engine inside the training process: it takes the trainer's own arrays, without a disk between."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.sharding import Mesh
from kanawa.arrays.rules import Rules
from kanawa.arrays.shardings import param_shardings
from kanawa.contracts import CausalLM, Environment
from kanawa.errors import KanawaError
from kanawa.module import param_specs

from kanawa_runtime.data.permutation import stream_key
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.request import Output, SamplingParams


class RewardError(KanawaError):
    """A reward raised, or gave no finite number."""


class RolloutError(KanawaError):
    """A rollout can't be made of a prompt."""


class Drawn(NamedTuple):
    """Ids with their log-probabilities, a stop token included, and why there are no more."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str


class EngineSampler:
    """Draws completions from the model with the parameters of each call; compiles everything once.

    Tokens are drawn at temperature 1 from the whole distribution: any other would not be the policy's. Each request
    has a seed of its own, and all of a call are submitted together, so that a repeated call returns the same bits.
    """

    def __init__(
        self, model: CausalLM, params: Any, state: Any, environment: Environment, config: EngineConfig
    ) -> None:
        # Late: the engine is a large part of this package, and a plan needs none of it.
        from kanawa_runtime.serve.engine.engine import LLMEngine

        self._shardings = decoding_shardings(model, environment)
        self._engine = LLMEngine(model, self._placed(params), state, environment, config)
        self._engine.start()

    def draw(
        self, params: Any, state: Any, prompts: Sequence[tuple[int, ...]], new_tokens: int, stops: tuple[int, ...],
        seed: tuple[int, ...],
    ) -> list[Drawn]:  # fmt: skip
        """Returns a completion of each prompt; all have ended when it returns, so none is of two sets of weights.

        Raises RolloutError for one that the engine couldn't finish.
        """
        self._engine.load(self._placed(params), state)
        samplings = [
            SamplingParams(max_tokens=new_tokens, seed=stream_key(*seed, row), stop_token_ids=stops, logprobs=0)
            for row in range(len(prompts))
        ]
        outputs = self._engine.generate(prompts, samplings)
        return [_drawn(output, row, prompts[row]) for row, output in enumerate(outputs)]

    @property
    def stats(self) -> dict[str, float]:
        """The engine's gauges and counters."""
        return dict(self._engine.stats())

    def close(self) -> None:
        """Ends the engine."""
        self._engine.stop()

    def _placed(self, params: Any) -> Any:
        import jax

        return params if self._shardings is None else jax.device_put(params, self._shardings)


def decoding_shardings(model: CausalLM, environment: Environment) -> Any:
    """Returns the shardings for decoding: as trained, but not over the axes that split the batch; None without a mesh.

    A trainer that shards weights over its rows gathers them once a step of millions of tokens; decoding would at every
    token. Experts stay where they are.
    """
    mesh = environment.mesh
    if not isinstance(mesh, Mesh):
        return None
    rows = {axis for name, axes in environment.plan.activation_rules if name in ("batch", "length") for axis in axes}
    rules: Rules = tuple(
        (name, axes if name == "experts" else tuple(axis for axis in axes if axis not in rows))
        for name, axes in environment.plan.param_rules
    )
    return param_shardings(param_specs(model), rules, mesh)


def _drawn(output: Output, row: int, prompt: tuple[int, ...]) -> Drawn:
    if output.finish_reason not in ("stop", "length"):
        ended = f"ended as {output.finish_reason!r}: {output.error}"
        message = f"rollout {row}, of a prompt of {len(prompt)} tokens, {ended}"
        raise RolloutError(message)
    ids, logprobs = output.token_ids, tuple(one.logprob for one in output.logprobs or ())
    if output.stop_token_id is not None and output.stop_logprob is not None:
        ids, logprobs = (*ids, output.stop_token_id), (*logprobs, output.stop_logprob.logprob)
    return Drawn(ids, logprobs, str(output.finish_reason))
