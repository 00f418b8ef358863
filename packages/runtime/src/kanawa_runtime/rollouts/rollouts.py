"""`rollouts`, a slot of the trainer: each batch is what the model in training wrote, and how it was rewarded."""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from kanawa.config import REQUIRED, Config, Count, Named, Positive, Size
from kanawa.contracts import CausalLM, DataSource, Environment, RolloutBatch, RolloutShape

from kanawa_runtime.rollouts.advantages import group_relative
from kanawa_runtime.rollouts.exact import exact_rounding
from kanawa_runtime.rollouts.interaction import Interaction
from kanawa_runtime.rollouts.prompts import Grouped
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.train.rollout_slot import RolloutConfig, RolloutWriter


class Rollouts(RolloutConfig):
    """Has `group_size` completions of at most `new_tokens` written to each prompt, and rewards them.

    A row's prompt ends before its first weighted target, or after `prompt_tokens` tokens. `rewards` are functions of a
    `Rollout`, whose sum by `weights` (None: 1 each) counts; `advantages` is one of the sums of whole groups. A reward
    that raises, returns no finite number or takes longer than `reward_seconds` ends the run, or with `skips_failed` its
    group is left out. `overlong_tokens` penalises the last so many of `new_tokens`, and `attempts` is how many prompts
    a group may try until its rewards differ (both: DAPO). Each batch is trained on `updates` times. With `off_policy`
    it is drawn while the one before is trained on, by parameters one batch older, and the loss's ratio corrects it.
    With `reference`, the divergence from the first parameters can be held down: their log-probabilities come with the
    batch. `stop_ids` None are the tokenizer's. Each process has an engine on its devices, with a copy of the weights.
    """

    PLACEMENT = ("engine", "evaluation_prompts", "logged_completions", "reward_seconds", "kept_microbatches", "packed")

    rewards: Annotated[tuple[Callable[..., Any], ...], Named("rewards")] = REQUIRED
    #: A run of `--modify reward-model`, or a folder with such a model: its number is a reward after `rewards`.
    reward_model: str | None = None
    weights: tuple[float, ...] | None = None
    reward_seconds: Positive | None = None
    skips_failed: bool = False
    group_size: Size = 8
    new_tokens: Size = 64
    overlong_tokens: Count = 0
    prompt_tokens: Size | None = None
    attempts: Size = 1
    updates: Size = 1
    off_policy: bool = False
    #: What answers the policy between its turns; without one there is one turn.
    interaction: Interaction.Config | None = None
    reference: bool = False
    #: Every token is one that the trainer's program draws, its log-probability the training step's bit for bit.
    exact: bool = False
    #: With `exact`, microbatches whose forward pass stays in memory until it is rated; of others it is computed twice.
    kept_microbatches: Size = 1
    #: A step computes rollouts that leave much of their rows empty several to a row, where one device has the batch.
    packed: bool = True
    advantages: Callable[..., Any] = group_relative
    stop_ids: tuple[Count, ...] | None = None
    engine: EngineConfig = EngineConfig(max_logprobs=0, prompt_logprobs=False, draws_only=True, fused_steps=16)
    #: Held-out rows that each evaluation draws a completion of.
    evaluation_prompts: Count = 64
    #: Rollouts of a step that go into the events, to be read.
    logged_completions: Count = 2

    @property
    def _num_rewards(self) -> int:
        return len(self.rewards) + (self.reward_model is not None)

    def reward_weights(self) -> np.ndarray:
        """Returns the weight of each of the judge's rewards, the penalty of overlong rollouts last."""
        own = self.weights if self.weights is not None else (1.0,) * self._num_rewards
        return np.asarray([*own, *((1.0,) if self.overlong_tokens else ())], np.float64)

    @property
    def has_reference(self) -> bool:
        """Whether batches hold log-probabilities of the run's first parameters."""
        return self.reference

    @property
    def has_old_logprobs(self) -> bool:
        """Whether batches hold the log-probabilities they were drawn with: the policy that trains is another one."""
        return self.updates > 1 or self.off_policy

    @property
    def has_draw_keys(self) -> bool:
        """Whether a step repeats the draws."""
        return self.exact

    @property
    def are_packed(self) -> bool:
        """Whether a step may compute several in a row."""
        return self.packed and not self.exact

    @property
    def num_kept(self) -> int:
        """How many microbatches' forward passes stay in memory."""
        return self.kept_microbatches

    def environment(self, environment: Environment) -> Environment:
        """Returns the environment; where draws are exact, with every rounding that a program writes down."""
        return exact_rounding(environment) if self.exact else environment

    def shape(self, batch_size: int, length: int) -> RolloutShape:
        """Returns what it draws for batches of so many rows of so many tokens; prompts of unknown length fill a row."""
        prompt = length - self.new_tokens if self.prompt_tokens is None else self.prompt_tokens
        return RolloutShape(
            rows=batch_size,
            prompt_tokens=prompt,
            new_tokens=self.new_tokens,
            updates=self.updates,
            # The pass that repeats exact ones is the step's own.
            scorings=int(self.reference) + int(self.updates > 1 and not self.off_policy and not self.exact),
            concurrent=self.engine.max_sequences,
            overlaps=self.off_policy,
        )

    def prompts(self, data: DataSource.Config, batch_size: int) -> DataSource.Config:
        """Returns the rows of `data`, each as often as its group has members."""
        data = data.in_batches(max(1, batch_size // self.group_size // self.updates))
        sizes: dict[str, Any] = {"batch_size": batch_size, "sequence_length": data.sequence_length, "seed": data.seed}
        sizes |= {"group_size": self.group_size, "updates": self.updates, "attempts": self.attempts}
        return Grouped.Config(source=data, **sizes)

    def writer(
        self, model: CausalLM, source: DataSource, environment: Environment, *,
        abstract: RolloutBatch, seed: int, params: Any, state: Any, reference: Any, step_program: Any,
    ) -> RolloutWriter:  # fmt: skip
        """Returns what writes the batches; see `RolloutMaker`."""
        from kanawa_runtime.rollouts.maker import RolloutMaker

        return RolloutMaker(
            self, model, source, environment, abstract=abstract, seed=seed, params=params, state=state,
            reference=reference, step_program=step_program,
        )  # fmt: skip

    def problems_of(self, batch_size: int, length: int, model: Any) -> list[str]:
        """Returns what doesn't fit a trainer's sizes and its model, one sentence each."""
        problems = self._problems_of_model(model) + self._problems_of_rewards()
        problems += self._problems_of_exact()
        if self.group_size < 2:
            problems.append(
                "rollouts.group_size is 1, expected at least 2: a reward is compared with the rest of its group"
            )
        if batch_size % self.group_size:
            problems.append(
                f"batch_size is {batch_size}, expected a multiple of rollouts.group_size ({self.group_size})"
            )
        if self.prompt_tokens is not None and self.prompt_tokens + self.new_tokens > length:
            problems.append(
                f"rollouts.prompt_tokens is {self.prompt_tokens} and rollouts.new_tokens {self.new_tokens}, but "
                f"data.sequence_length is {length}, which has to hold both; raise it, or lower one of them"
            )
        if self.new_tokens >= length:
            problems.append(
                f"rollouts.new_tokens is {self.new_tokens}, but data.sequence_length is {length}, which has to "
                "hold a prompt as well; raise the one or lower the other"
            )
        return problems

    def _problems_of_exact(self) -> list[str]:
        problems = []
        if self.exact and self.off_policy:
            problems.append(
                "rollouts.exact and rollouts.off_policy are set: a batch drawn by older parameters has no token of the "
                "ones that it trains; unset one of them"
            )
        if self.exact and self.interaction is not None:
            problems.append(
                "rollouts.exact and rollouts.interaction are set: a token that is drawn again would change what was "
                "answered to it; unset one of them"
            )
        return problems

    def _problems_of_rewards(self) -> list[str]:
        problems = []
        if not self._num_rewards:
            problems.append("rollouts.rewards is empty, expected one at least: `kanawa list rewards` shows those here")
        if self.weights is not None and len(self.weights) != self._num_rewards:
            problems.append(
                f"rollouts.weights has {len(self.weights)} numbers for {self._num_rewards} rewards, expected one each"
            )
        if self.overlong_tokens > self.new_tokens:
            problems.append(
                f"rollouts.overlong_tokens is {self.overlong_tokens}, expected at most rollouts.new_tokens "
                f"({self.new_tokens}), the last of which it penalises"
            )
        return problems

    def _problems_of_model(self, model: Any) -> list[str]:
        """Returns what the engine or the loss would otherwise report after minutes of compiling."""
        problems, fields = [], model.fields()
        outside = [i for i in self.stop_ids or () if "vocab_size" in fields and i >= model.vocab_size]
        if outside:
            last = model.vocab_size - 1
            problems.append(f"rollouts.stop_ids holds {outside[0]}, and the model's ids are 0 to {last}")
        loss = model.loss if "loss" in fields else None
        if isinstance(loss, Config) and "kl" in loss.fields() and loss.kl and not self.reference:
            problems.append(
                f"model.loss.kl is {loss.kl:g}, and the rollouts come without a reference to stay near to; set "
                "rollouts.reference=true, as --modify grpo:reward=NAME,kl=… does, or model.loss.kl=0"
            )
        longest = self.engine.max_length
        if longest is not None and self.new_tokens >= longest:
            problems.append(
                f"rollouts.new_tokens is {self.new_tokens}, but rollouts.engine.max_length is {longest}, which has to "
                "hold a prompt as well; raise the one or lower the other"
            )
        return problems
