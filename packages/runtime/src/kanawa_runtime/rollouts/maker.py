"""Makes batches to train on: completions of prompts, their rewards, and both laid out as rows."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from kanawa.config import public_name
from kanawa.contracts import Batch, CausalLM, DataSource, Environment, Program, RolloutBatch
from kanawa.contracts.data import Tokenizer
from kanawa.errors import UsageError
from kanawa.module import EmissionError, functional

from kanawa_runtime.rollouts.prompts import Question, question
from kanawa_runtime.rollouts.rewards import Rollout
from kanawa_runtime.rollouts.sampler import Drawn, EngineSampler, RewardError, RolloutError
from kanawa_runtime.train.rollout_slot import Made, RolloutWriter


class RolloutMaker(RolloutWriter):
    """Makes a run's batches from `cfg`, a `Rollouts`; `abstract` is the batch of the step's program.

    `reference` are the parameters to stay near to, where the config asks for any. Raises UsageError for a model
    without a policy loss.
    """

    def __init__(
        self, cfg: Any, model: CausalLM, source: DataSource, environment: Environment, *,
        abstract: RolloutBatch, seed: int, params: Any, state: Any, reference: Any = None,
    ) -> None:  # fmt: skip
        self.config = cfg
        self._tokenizer, self._seed, self._reference = source.tokenizer, seed, reference
        rows, self._length = abstract.input_ids.shape
        self._stops = cfg.stop_ids
        if self._stops is None:
            self._stops = () if self._tokenizer is None else self._tokenizer.stop_ids
        self._logprobs = _logprobs_program(model, environment, params, state, Batch(*abstract[:5]))
        engine = cfg.engine.clone().set(max_queued=rows)
        if engine.max_length is None:
            engine.set(max_length=self._length)
        self._max_length = min(engine.max_length, self._length)
        self._compiled = self._logprobs.lower().compile() if cfg.updates > 1 or cfg.reference else None
        self.sampler = EngineSampler(model, params, state, environment, engine)
        self._made: Made | None = None

    def batch(self, prompts: Batch, params: Any, state: Any, step: int) -> Made:
        """Returns the batch of the update after `step` updates, and its figures; `prompts` are a row's each.

        Raises RewardError, and RolloutError for a prompt that is too long.
        """
        if step % self.config.updates and self._made is not None:
            return self._made
        began = time.perf_counter()
        questions = [question(prompts, row, self.config.prompt_tokens) for row in range(len(prompts.input_ids))]
        self._check_lengths(questions)
        drawn = self.sampler.draw(
            params, state, [one.prompt for one in questions], self.config.new_tokens, self._stops, (self._seed, step)
        )
        rollouts = [rollout_of(one, mine, self._tokenizer) for one, mine in zip(questions, drawn, strict=True)]
        rewards = np.asarray([self._reward(rollout) for rollout in rollouts])
        batch = self._laid_out(questions, drawn, self._advantages(rewards))
        if self._compiled is not None:
            plain = Batch(*batch[:5])
            old = self._compiled(params, state, plain) if self.config.updates > 1 else None
            near = None if self._reference is None else self._compiled(self._reference, state, plain)
            batch = batch._replace(old_logprobs=_on_host(old), reference_logprobs=_on_host(near))
        groups = rewards.reshape(-1, self.config.group_size)
        figures = {
            "reward": float(rewards.mean()),
            "groups_alike": float(np.mean(groups.max(1) == groups.min(1))),
            # The loss may be a mean over rows, so that its weight doesn't count tokens.
            "tokens": float(sum(len(one.ids) for one in drawn)),
            "rollout_seconds": time.perf_counter() - began,
            "engine_compilations": self.sampler.stats["compilations"],
        }
        self._made = batch, figures
        return self._made

    # --- for a resumed run -----------------------------------------------------------------------------------

    def saved(self, step: int) -> dict[str, Any]:
        """Returns, as JSON, what a run resumed after `step` updates can't make again."""
        saved: dict[str, Any] = {}
        if self._reference is not None:
            saved["reference"] = _fingerprint(self._reference)
        if step % self.config.updates and self._made is not None:
            batch, figures = self._made
            arrays = {name: x.tolist() for name, x in batch._asdict().items() if x is not None}
            saved |= {"batch": arrays, "told": figures}
        return saved

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Takes what `saved` returned; raises UsageError where the reference is another one now."""
        if self._reference is not None and not _are_equal(saved.get("reference"), _fingerprint(self._reference)):
            message = (
                "the run's reference policy was its first parameters, and these are others: give the --init-from with "
                "which it was started, or the seed"
            )
            raise UsageError(message)
        if "batch" in saved:
            whole = {"input_ids", "target_ids", "positions", "segment_ids"}
            arrays: dict[str, Any] = {
                name: np.asarray(x, np.int32 if name in whole else np.float32) for name, x in saved["batch"].items()
            }
            self._made = RolloutBatch(**arrays), dict(saved["told"])

    def close(self) -> None:
        """Stops the engine."""
        self.sampler.close()

    # --- rows --------------------------------------------------------------------------------------------------

    def _check_lengths(self, questions: Sequence[Question]) -> None:
        longest = max(len(one.prompt) for one in questions)
        if longest + self.config.new_tokens > self._max_length:
            message = (
                f"a prompt of {longest} tokens and rollouts.new_tokens={self.config.new_tokens} make "
                f"{longest + self.config.new_tokens}, but a row and the engine hold {self._max_length}; raise "
                "data.sequence_length (and rollouts.engine.max_length where it is set), or ask for fewer"
            )
            raise RolloutError(message)

    def _reward(self, rollout: Rollout) -> float:
        what = f"the reward {public_name(self.config.reward)}"
        of = f"for the prompt {rollout.prompt or list(rollout.prompt_ids)!r}"
        try:
            reward = float(self.config.reward(rollout))
        except Exception as error:
            message = f"{what} raised {type(error).__name__}: {error}; {of}. Fix it, and run the same command again"
            raise RewardError(message) from error
        if not math.isfinite(reward):
            message = f"{what} gave {reward} {of}; expected a finite number. Fix it, and run the same command again"
            raise RewardError(message)
        return reward

    def _advantages(self, rewards: np.ndarray) -> np.ndarray:
        groups = rewards.reshape(-1, self.config.group_size)
        what = f"rollouts.advantages, {public_name(self.config.advantages)},"
        try:
            advantages = np.asarray(self.config.advantages(groups), np.float32)
        except Exception as error:
            message = f"{what} raised {type(error).__name__}: {error}; for rewards {list(groups.shape)}"
            raise RewardError(message) from error
        if advantages.shape != groups.shape or not np.isfinite(advantages).all():
            message = (
                f"{what} gave {list(advantages.shape)} for "
                f"rewards {list(groups.shape)}, or numbers that aren't finite; expected one finite number a reward"
            )
            raise RewardError(message)
        return advantages.reshape(-1)

    def _laid_out(self, questions: Sequence[Question], drawn: Sequence[Drawn], advantages: np.ndarray) -> RolloutBatch:
        shape = len(questions), self._length
        ids, targets, positions, segments = (np.zeros(shape, np.int32) for _ in range(4))
        weights, gains, sampled = (np.zeros(shape, np.float32) for _ in range(3))
        positions[:] = np.arange(self._length)
        for row, (asked, mine) in enumerate(zip(questions, drawn, strict=True)):
            tokens = [*asked.prompt, *mine.ids]
            written = slice(len(asked.prompt) - 1, len(tokens) - 1)
            ids[row, : len(tokens) - 1], targets[row, : len(tokens) - 1] = tokens[:-1], tokens[1:]
            segments[row, : len(tokens) - 1] = 1
            weights[row, written], gains[row, written], sampled[row, written] = 1.0, advantages[row], mine.logprobs
        rows: list[Any] = [ids, targets, positions, segments, weights, gains, sampled]
        return RolloutBatch(*rows)


def _on_host(logprobs: Any) -> Any:
    return None if logprobs is None else np.asarray(logprobs)


def rollout_of(asked: Question, drawn: Drawn, tokenizer: Tokenizer | None) -> Rollout:
    """Returns what a reward function gets, with texts where there is a tokenizer; a stop token has none."""
    texts = {}
    if tokenizer is not None:
        ids = {"prompt": asked.prompt, "completion": drawn.ids, "answer": asked.answer}
        # A model may have more ids than its tokenizer, and draw them.
        known = tokenizer.vocab_size
        texts = {name: tokenizer.decode([i for i in some if i < known]) for name, some in ids.items()}
    reason = drawn.finish_reason
    return Rollout(
        prompt_ids=asked.prompt, completion_ids=drawn.ids, answer_ids=asked.answer, finish_reason=reason, **texts
    )


def _logprobs_program(model: CausalLM, environment: Environment, params: Any, state: Any, batch: Batch) -> Program:
    """Returns the program of the drawn tokens' log-probabilities by the trainer's model, fp32 [rows, length]."""

    def logprobs(params: Any, state: Any, batch: Batch) -> jax.Array:
        emitted = functional(model)(params, state, batch, train=False, emit=("**.logprobs",))[1].emitted
        values: jax.Array
        (values,) = emitted.values()
        return values

    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), (params, state))
    program = Program("logprobs", logprobs, (*abstract, batch), (), None, environment)
    try:
        with environment.active():
            jax.eval_shape(logprobs, *program.abstract_args)
    except EmissionError as error:
        message = (
            "the model's loss is not a policy loss: it emits no `logprobs`, and would train on what the model wrote. "
            "Add --modify policy-loss, which --modify grpo:reward=NAME includes"
        )
        raise UsageError(message) from error
    return program


def _fingerprint(params: Any) -> list[float]:
    """Returns a fingerprint of parameters: one number of each array."""
    middles = jax.tree.map(lambda x: x[tuple(n // 2 for n in x.shape)], params)
    return [float(x) for x in jax.tree.leaves(jax.device_get(middles))]


def _are_equal(before: Sequence[float] | None, now: Sequence[float]) -> bool:
    """Returns whether fingerprints are of the same parameters, whose last bits depend on the hardware."""
    return before is not None and len(before) == len(now) and np.allclose(before, now, rtol=1e-3, atol=1e-6)
