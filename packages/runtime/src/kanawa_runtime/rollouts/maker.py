"""Makes batches to train on: completions of prompts, their rewards, and both laid out as rows."""

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from kanawa.contracts import Batch, CausalLM, DataSource, Environment, Program, RolloutBatch
from kanawa.errors import UsageError
from kanawa.module import EmissionError, functional

from kanawa_runtime.data.permutation import permutation
from kanawa_runtime.rollouts.exact import RepeatedDraws
from kanawa_runtime.rollouts.exchange import Exchange
from kanawa_runtime.rollouts.groups import Groups, GroupWriter, advantages_of, figures_of, rollout_of
from kanawa_runtime.rollouts.held_out import HeldOut
from kanawa_runtime.rollouts.interaction import played
from kanawa_runtime.rollouts.judge import Judge
from kanawa_runtime.rollouts.prompts import Asked, Grouped
from kanawa_runtime.rollouts.reward_model import RewardModel
from kanawa_runtime.rollouts.sampler import Drawn, EngineSampler, RolloutError, seed_of
from kanawa_runtime.rollouts.written import Written, laid_out, restored_rows
from kanawa_runtime.train.batches import global_batch, local_rows, own_rows
from kanawa_runtime.train.rollout_slot import Made, RolloutWriter

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _Ahead(NamedTuple):
    """A batch that is being made: whether engine and rewards are done with it, and all of it once it is exchanged."""

    first_row: int
    is_drawn: threading.Event
    is_rated: threading.Event
    written: Future[Written]


class RolloutMaker(RolloutWriter):
    """Makes a run's batches from `cfg`, a `Rollouts`; `abstract` is the global batch of the step's program.

    Each process draws the rows that its devices train on. `reference` are the parameters to stay near to, where the
    config asks for any. Raises UsageError for a model without a policy loss.
    """

    def __init__(
        self, cfg: Any, model: CausalLM, source: DataSource, environment: Environment, *,
        abstract: RolloutBatch, seed: int, params: Any, state: Any, step_program: Any = None, reference: Any = None,
    ) -> None:  # fmt: skip
        self.config, self._source, self._seed, self._reference = cfg, source, seed, reference
        self._tokenizer, self._abstract, self._rows = source.tokenizer, abstract, local_rows(abstract)
        size, self._length = abstract.input_ids.shape
        self._stops = cfg.stop_ids
        if self._stops is None:
            self._stops = () if self._tokenizer is None else self._tokenizer.stop_ids
        plain = Batch(*abstract[:5])
        program = _logprobs_program(model, environment, params, state, plain)
        self._compiled = program.lower().compile() if self._recomputes or cfg.reference else None
        engine = cfg.engine.clone().set(max_queued=len(self._rows))
        # A program's rows that no rollout has would be computed too.
        engine.set(max_sequences=min(engine.max_sequences, len(self._rows)))
        if engine.max_length is None:
            engine.set(max_length=self._length)
        self._max_length = min(engine.max_length, self._length)
        rater = None if cfg.reward_model is None else RewardModel(cfg.reward_model, self._tokenizer).rate
        judge = Judge(
            cfg.rewards, seconds=cfg.reward_seconds, overlong_tokens=cfg.overlong_tokens, new_tokens=cfg.new_tokens,
            model=rater,
        )  # fmt: skip
        self._groups = GroupWriter(
            judge=judge, weights=cfg.reward_weights(), size=size, rows=self._rows, group_size=cfg.group_size,
            attempts=cfg.attempts, skips_failed=cfg.skips_failed, tokenizer=self._tokenizer,
            exchange=Exchange("groups"),
        )  # fmt: skip
        self._saving = Exchange("saved")
        self._interaction = None if cfg.interaction is None else cfg.interaction.build()
        if self._interaction is not None:
            self._interaction.prepare(self._tokenizer)
        self._held_out = HeldOut(cfg, source.held_out(), judge, self._groups.weights, self._tokenizer)
        if cfg.exact:
            engine.set(noisy_draws=True)
            environment = cfg.environment(environment)
        self.sampler = EngineSampler(model, params, state, environment, engine)
        #: What repeats the draws by the trainer's forward pass, where they have to be exact.
        self._repeated: RepeatedDraws | None = None
        if cfg.exact:
            self._repeated = RepeatedDraws(self.sampler, step_program, abstract)
        #: What is trained on now, with all it needs, and what is being drawn for later.
        self._made: Written | None = None
        self._ahead: _Ahead | None = None

    @property
    def _recomputes(self) -> bool:
        """Whether the trainer's own log-probabilities of a batch are needed, which it is trained on several times."""
        return self.config.updates > 1 and not self.config.off_policy and not self.config.exact

    def batch(self, params: Any, state: Any, step: int, first_row: Callable[[int], int]) -> Made:
        """Returns the batch of the update after `step` updates, and its figures; see `RolloutWriter`.

        Raises RewardError, and RolloutError for a prompt that is too long.
        """
        if step % self.config.updates and self._made is not None:
            # Its completions are in the events already.
            return self._made.batch, {**self._made.figures, "completions": []}
        if not self.config.off_policy:
            self.sampler.load(params, state)
            if self._repeated is not None:
                self._repeated.load(params, state, step)
            self._made = self._with_logprobs(self._draw(first_row(step), step), params, state)
            return self._made.batch, self._made.figures
        began, first, ahead = time.perf_counter(), first_row(step), self._ahead
        if ahead is not None:
            ahead.is_drawn.wait()
            if ahead.first_row != first:
                # Batches were left out since it was drawn.
                ahead.written.exception()
                ahead = None
        # The parameters before the last update have drawn it; at the start, these do.
        ahead = self._started(params, state, step, first, None) if ahead is None else ahead
        ahead.is_drawn.wait()
        self._draw_ahead(params, state, step + self.config.updates, first_row, ahead)
        written = self._with_logprobs(ahead.written.result(), params, state)
        figures = {**written.figures, "rollout_wait_seconds": time.perf_counter() - began}
        self._made = written._replace(figures=figures)
        return self._made.batch, self._made.figures

    def _draw_ahead(
        self, params: Any, state: Any, step: int, first_row: Callable[[int], int], before: "_Ahead"
    ) -> None:
        """Begins to draw the batch of a later step, where the data has one."""
        rows, first = self._source.num_rows, first_row(step)
        self._ahead = None
        if rows is None or first + self._groups.size <= rows:
            self._ahead = self._started(params, state, step, first, before)

    def _started(self, params: Any, state: Any, step: int, first_row: int, before: "_Ahead | None") -> "_Ahead":
        """Begins to draw a batch beside the training step, and to rate it once the one `before` is rated."""
        # Before the update, which takes the parameters' memory: the engine has its own copy from here on.
        self.sampler.load(params, state)
        is_drawn, is_rated = threading.Event(), threading.Event()

        def rest() -> None:
            if self.config.attempts == 1:
                is_drawn.set()
            if before is not None:
                # Rewards are called one at a time.
                before.is_rated.wait()

        def exchange() -> None:
            if self.config.attempts == 1:
                is_rated.set()
            if before is not None:
                # In the same order everywhere.
                before.written.exception()

        def draw() -> Written:
            try:
                return self._draw(first_row, step, rest, exchange)
            finally:
                is_drawn.set()
                is_rated.set()

        return _Ahead(first_row, is_drawn, is_rated, _in_background(draw))

    def _draw(
        self, first_row: int, step: int, on_drawn: Callable[[], None] = lambda: None,
        on_rated: Callable[[], None] = lambda: None,
    ) -> Written:  # fmt: skip
        """Draws a batch with the engine's weights, calls `on_drawn`, rates it and calls `on_rated`.

        Safe beside the training step.
        """
        began, source, cfg = time.perf_counter(), self._source, self.config
        assert isinstance(source, Grouped)

        def asked(place: int, attempt: int) -> Asked:
            return source.asked(first_row + place, attempt, cfg.prompt_tokens)

        def draw(questions: Sequence[Asked], places: Sequence[int], attempt: int) -> list[Drawn]:
            seeds = [seed_of(self._seed, step, place, attempt=attempt) for place in places]
            if self._repeated is not None:
                mine = [place - self._rows.start for place in places]
                drawn = self._completed(questions, seeds, functools.partial(self._repeated.draw, places=mine))
            else:
                drawn = self._completed(questions, seeds, self.sampler.draw) if places else []
            on_drawn()
            return drawn

        groups = self._groups.write(asked, draw, on_rated)
        totals = self._groups.totals(groups.rewards)
        # A group that is left out weighs nothing, but its numbers have to be finite.
        totals = np.where(groups.left_out, 0.0, totals).reshape(-1, cfg.group_size)
        advantages, counts = advantages_of(cfg.advantages, totals), (~groups.left_out).astype(np.float32)
        mine = slice(self._rows.start, self._rows.stop)
        prompts = [one.prompt for one in groups.asked]
        batch = laid_out(prompts, groups.drawn, advantages[mine], counts[mine], self._length)
        if cfg.has_old_logprobs and not self._recomputes:
            batch = batch._replace(old_logprobs=batch.sampled_logprobs)
        figures = {
            **figures_of(groups, self._groups),
            "rollout_seconds": time.perf_counter() - began,
            "engine_compilations": self.sampler.stats["compilations"],
        }
        if self._repeated is not None:
            batch = batch._replace(draw_keys=self._repeated.keys)
            figures |= {"forward_passes": self._repeated.passes, "redrawn_tokens": self._repeated.redrawn}
        if cfg.logged_completions:
            figures["completions"] = self._logged(groups, totals.reshape(-1), advantages, step)
        return Written(batch, figures, first_row)

    def _completed(
        self, questions: Sequence[Asked], seeds: Sequence[int], draw: Callable[..., list[Drawn]]
    ) -> list[Drawn]:
        """Returns a completion of each question, in as many turns as the interaction lets it have."""
        prompts = [one.prompt for one in questions]
        self._check_lengths(prompts)
        if self._interaction is None:
            return draw(prompts, [self.config.new_tokens] * len(prompts), self._stops, seeds)

        def turn(
            prompts: Sequence[tuple[int, ...]], limits: Sequence[int], seeds: Sequence[int]
        ) -> list[Drawn]:  # fmt: skip
            return draw(prompts, limits, self._stops, seeds)

        return played(self._interaction, questions, seeds, turn, self.config.new_tokens, self._tokenizer)

    def _logged(
        self, groups: Groups, totals: np.ndarray, advantages: np.ndarray, step: int
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Returns a few of this process's rollouts, drawn by the step, for a person to read."""
        chosen = permutation(len(self._rows), self._seed, step)[: self.config.logged_completions]
        table = []
        for row in sorted(int(index) for index in chosen):
            place, drawn = self._rows[row], groups.drawn[row]
            rollout = rollout_of(groups.asked[row], drawn, self._tokenizer)
            names, values = self._groups.judge.names, groups.rewards[place].tolist()
            table.append({
                "row": place,
                "prompt": rollout.prompt or list(rollout.prompt_ids),
                "completion": rollout.completion or list(rollout.completion_ids),
                "finish_reason": drawn.finish_reason,
                "rewards": dict(zip(names, values, strict=True)),
                "reward": float(totals[place]),
                "advantage": float(advantages[place]),
            })  # fmt: skip
        return table

    def _with_logprobs(self, written: Written, params: Any, state: Any) -> Written:
        """Adds the log-probabilities by the trainer's own parameters and by the reference, where they are wanted."""
        if self._compiled is None:
            return written
        specs = Batch(*self._abstract[:5])
        plain = global_batch(Batch(*written.batch[:5]), specs, self._rows)
        old: Any = (
            own_rows(self._compiled(params, state, plain), self._rows)
            if self._recomputes
            else written.batch.old_logprobs
        )
        near: Any = (
            None if self._reference is None else own_rows(self._compiled(self._reference, state, plain), self._rows)
        )
        return written._replace(batch=written.batch._replace(old_logprobs=old, reference_logprobs=near))

    # --- held-out rows -----------------------------------------------------------------------------------------

    def evaluate(self, params: Any, state: Any) -> dict[str, Any] | None:
        """Returns the mean rewards over held-out prompts; None without any, or where the config wants none."""
        if not self._held_out.count:
            return None
        if self._ahead is not None:
            # The engine has one set of weights at a time.
            self._ahead.written.exception()
        self.sampler.load(params, state)
        draw = functools.partial(self._completed, draw=self.sampler.draw)
        return self._held_out.evaluate(self._seed, draw, self.sampler.engine.config.max_queued)

    # --- for a resumed run -----------------------------------------------------------------------------------

    def saved(self, step: int) -> dict[str, Any]:
        """Returns, as JSON, what a run resumed after `step` updates can't make again. All processes call."""
        saved: dict[str, Any] = {}
        if self._reference is not None:
            saved["reference"] = _fingerprint(self._reference)
        if step % self.config.updates and self._made is not None:
            saved["made"] = self._saving.all(self._made.saved(self._rows.start))
        if self._ahead is not None:
            saved["ahead"] = self._saving.all(self._ahead.written.result().saved(self._rows.start))
        return saved

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Takes what `saved` returned; raises UsageError where the reference is another one now."""
        if self._reference is not None and not _are_equal(saved.get("reference"), _fingerprint(self._reference)):
            message = (
                "the run's reference policy was its first parameters, and these are others: give the --init-from with "
                "which it was started, or the seed"
            )
            raise UsageError(message)
        if "made" in saved:
            self._made = restored_rows(saved["made"], self._rows)
        if "ahead" in saved and self.config.off_policy:
            written = restored_rows(saved["ahead"], self._rows)
            self._ahead = _Ahead(written.first_row, threading.Event(), threading.Event(), Future())
            self._ahead.is_drawn.set()
            self._ahead.is_rated.set()
            self._ahead.written.set_result(written)

    def close(self) -> None:
        """Stops the engine, and ends what the interaction started."""
        self.sampler.close()
        if self._interaction is not None:
            self._interaction.close()

    # --- rows --------------------------------------------------------------------------------------------------

    def _check_lengths(self, prompts: Sequence[tuple[int, ...]]) -> None:
        longest = max((len(one) for one in prompts), default=0)
        if longest + self.config.new_tokens > self._max_length:
            message = (
                f"a prompt of {longest} tokens and rollouts.new_tokens={self.config.new_tokens} make "
                f"{longest + self.config.new_tokens}, but a row and the engine hold {self._max_length}; raise "
                "data.sequence_length (and rollouts.engine.max_length where it is set), or ask for fewer"
            )
            raise RolloutError(message)


def _in_background(function: Callable[[], T]) -> Future[T]:
    """Returns the result to be of a function, run on a thread that no exit waits for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="kanawa-rollouts", daemon=True).start()
    return future


def _logprobs_program(model: CausalLM, environment: Environment, params: Any, state: Any, batch: Batch) -> Program:
    """Returns the program of the drawn tokens' log-probabilities by the trainer's model, fp32 [rows, length]."""

    def logprobs(params: Any, state: Any, batch: Batch) -> jax.Array:
        emitted = functional(model)(params, state, batch, train=False, emit=("**.logprobs",))[1].emitted
        values: jax.Array
        (values,) = emitted.values()
        return values

    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), (params, state))
    program = Program("logprobs", logprobs, (*abstract, batch), (), batch.input_ids.sharding, environment)
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
