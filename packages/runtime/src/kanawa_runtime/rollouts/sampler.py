"""The serving engine inside the training process: it takes the trainer's own arrays, without a disk between."""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.sharding import Mesh
from kanawa.arrays.rules import Rules
from kanawa.arrays.shardings import param_shardings
from kanawa.contracts import CausalLM, Environment
from kanawa.module import param_specs

from kanawa_runtime.data.permutation import stream_key
from kanawa_runtime.rollouts.errors import RolloutError
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.request import Output, Request, SamplingParams

#: How often a wait checks that the engine is alive.
_CHECK_SECONDS = 1.0


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
        requests = []
        for row, prompt in enumerate(prompts):
            sampling = SamplingParams(
                max_tokens=new_tokens, seed=stream_key(*seed, row), stop_token_ids=stops, logprobs=0
            )
            requests.append(Request(id=str(row), prompt_ids=prompt, sampling=sampling))
        gathered: list[list[Output]] = [[] for _ in requests]
        left, done = [len(requests)], threading.Event()

        def take(output: Output) -> None:
            gathered[int(output.request_id)].append(output)
            if output.finish_reason is not None:
                left[0] -= 1
                if not left[0]:
                    done.set()

        self._engine.submit_together(requests, take)
        while not done.wait(_CHECK_SECONDS):
            if not self._engine.is_alive and not done.is_set():
                message = "the engine that makes the rollouts has ended; its error is in the log"
                raise RolloutError(message)
        return [_drawn(outputs, row, prompts[row]) for row, outputs in enumerate(gathered)]

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


def _drawn(outputs: Sequence[Output], row: int, prompt: tuple[int, ...]) -> Drawn:
    last = outputs[-1]
    if last.finish_reason not in ("stop", "length"):
        message = f"rollout {row}, of a prompt of {len(prompt)} tokens, ended as {last.finish_reason!r}: {last.error}"
        raise RolloutError(message)
    ids = [token for output in outputs for token in output.token_ids]
    logprobs = [one.logprob for output in outputs for one in output.logprobs or ()]
    if last.stop_token_id is not None and last.stop_logprob is not None:
        ids.append(last.stop_token_id)
        logprobs.append(last.stop_logprob.logprob)
    return Drawn(tuple(ids), tuple(logprobs), str(last.finish_reason))
