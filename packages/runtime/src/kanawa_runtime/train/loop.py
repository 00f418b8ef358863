"""The training loop: start, step, evaluate, save, stop; every fact goes to the journal as it happens."""

import contextlib
import dataclasses
import functools
import logging
import os
import shlex
import signal
import threading
import time
from pathlib import Path
from typing import Any, Literal

import jax
from kanawa.composition.experiment import Composition
from kanawa.composition.prepare import prepare
from kanawa.contracts import Batch, CausalLM, CheckpointSaveError, MakesPictures
from kanawa.errors import KanawaError

from kanawa_runtime import faults
from kanawa_runtime.checkpoint.agreement import of_primary
from kanawa_runtime.exit_codes import LOST
from kanawa_runtime.goodput.sections import Sections
from kanawa_runtime.goodput.time_log import TimeLog
from kanawa_runtime.runs.run_directory import RunDirectory
from kanawa_runtime.services.host import ServiceHost
from kanawa_runtime.storage.place import stands_for
from kanawa_runtime.train.attempt import Attempt, Journal
from kanawa_runtime.train.batches import ReadAhead
from kanawa_runtime.train.branch import Branch
from kanawa_runtime.train.evaluate import trigram_nats_per_byte
from kanawa_runtime.train.outcome import Outcome, already_there, ending, shown
from kanawa_runtime.train.peers import lost_peer
from kanawa_runtime.train.program_record import KERNELS, memory_peaks
from kanawa_runtime.train.run_length import run_length
from kanawa_runtime.train.screen import LineScreen, Screen
from kanawa_runtime.train.start import Started, start
from kanawa_runtime.train.steering import Steering, with_rate
from kanawa_runtime.train.stepping import RewoundError, Stepper
from kanawa_runtime.train.stop_signals import RunStopped, StopSignals
from kanawa_runtime.train.task_slot import with_scores

logger = logging.getLogger(__name__)

#: What a second Ctrl-C waits for the last event and the last line.
_LAST_WORDS_SECONDS = 5.0
#: What a process whose peer was lost waits for a save that is under way.
_SAVE_SECONDS = 20.0


class Loop:
    """One attempt at a run, from opening its directory to the last event.

    `steps` is how far to go (see `run_length`), `initial` a folder to take the first parameters from, `from_step` the
    committed step to resume from (None: the newest), `leave_out` batches, from 0, to take no more, `branch` where a
    new run goes on from, `command` what a person would type to resume. A second Ctrl-C ends the process if the loop
    `owns_process`; else it raises KeyboardInterrupt.
    """

    def __init__(
        self,
        composition: Composition,
        directory: Path | str,
        *,
        steps: int | None = None,
        initial: Path | None = None,
        from_step: int | None = None,
        leave_out: tuple[int, int] | None = None,
        branch: Branch | None = None,
        screen: Screen | None = None,
        command: str = "",
        owns_process: bool = True,
    ) -> None:
        length = run_length(composition, directory, steps)
        composition, self.total = length.composition, length.total
        self.screen = LineScreen() if screen is None else screen
        if length.remark:
            self.screen.say(length.remark)
        self.initial = initial
        self.from_step = from_step
        self.leave_out = leave_out
        self.branch = branch
        self.owns_process = owns_process
        self.command = command or f"kanawa train {composition.name} --run {shlex.quote(shown(directory))}"
        services = [service.build() for service in composition.config.services]
        self.prepared = prepare(composition)
        # Last, since it takes the run's lock: an error above must not leave the run taken.
        self.run = RunDirectory.open(directory, composition.config)
        self.services = ServiceHost([one for one in services if self.run.is_primary or one.everywhere])
        self.steering = Steering(self.run, self.services, active=any(one.steers for one in services))

    def execute(self) -> Outcome:
        """Runs to `total` steps or until a signal, and returns how it ended; an error is on record before it leaves."""
        stop = StopSignals(gang=jax.process_count() > 1)
        # Signals first: what comes while the rest is set up counts.
        with stop, self.run, self.prepared.environment.active():
            logger.debug("attempt %d", self.run.attempt)
            time_log = None
            if self.run.is_primary:
                time_log = TimeLog(self.run.path, self.run.events(), jax.process_count())
            policy = self.prepared.composition.config.checkpoints
            journal = Journal(self.run, self.services, time_log)
            sections = _sections(self.run, self.services, time_log)
            checkpoints = self.prepared.composition.config.checkpointer.build(
                directory=self.run.checkpoints,
                keep_last_n=policy.keep_last,
                keep_every_n_steps=policy.keep_every_steps,
                on_event=journal.checkpoint,
                lease=self.run.lease,
            )
            attempt = Attempt(
                self.prepared,
                self.run,
                journal,
                checkpoints,
                self.screen,
                stop,
                sections,
                self.total,
                self.initial,
                self.from_step,
                self.leave_out,
                self.branch,
            )
            running = _Running(attempt, self.command, self.steering)
            stop.on_first = running.stopping
            stop.on_second = running.stopped_at_once if self.owns_process else lambda name: stop.interrupt_main()
            return running.outcome()


def _sections(run: RunDirectory, services: ServiceHost, time_log: TimeLog | None) -> Sections:
    """Returns what the training thread is in, the time log first: what a service takes counts to what follows."""
    tell = functools.partial(services.section, run)
    return Sections(tell) if time_log is None else Sections(time_log.enter, tell, relabel=time_log.relabel)


class _Running:
    """The attempt while it runs. `stepper` is None before the first step."""

    def __init__(self, attempt: Attempt, command: str, steering: Steering) -> None:
        self.attempt = attempt
        self.command = command
        self.steering = steering
        #: Why services ended the training before its last step; empty as long as they didn't.
        self.stopped_by = ""
        self.stepper: Stepper | None = None
        self.evaluation: dict[str, Any] | None = None

    def outcome(self) -> Outcome:
        """Returns how the attempt ended; the last event and the last lines say so as well."""
        attempt, kind, fields = self.attempt, "failed", {}
        try:
            outcome = self._outcome()
            with attempt.sections.within("save"):
                attempt.checkpoints.close()
            kind, fields = outcome.kind, {"signal": outcome.signal or None, "checkpoint": outcome.saved}
        except BaseException as error:
            kind = "failed" if isinstance(error, Exception) else "interrupted"
            if isinstance(error, RewoundError):
                kind = "rewound"
            if isinstance(error, CheckpointSaveError):
                error.add_note(self._after_a_failed_save())
                # Storage that refused this save may take the next one: from the newest checkpoint on, steps are lost.
                error.exit_code = LOST
            if jax.process_count() > 1 and lost_peer(error) is not None:
                kind = "peer_lost"
                self._wait_a_little_for_the_save()
            else:
                self._drain_quietly()
                self._close_quietly()
            raise
        finally:
            if self.stepper is not None:
                self.stepper.close()
            attempt.journal.write("run_ended", outcome=kind, step=self.step, **fields)
            # Before services end, which may take a while: a frozen bar would look like a hang.
            attempt.screen.close()
            attempt.journal.close()
        source, prompt = attempt.trainer.source, attempt.config.sample_prompt
        model = attempt.trainer.model
        kinds = {"generates": isinstance(model, CausalLM), "draws": isinstance(model, MakesPictures)}
        for line in ending(outcome, self.command, source, prompt, **kinds):
            attempt.screen.say(line)
        return outcome

    @property
    def step(self) -> int:
        """Updates completed so far."""
        return self.attempt.run.start_step if self.stepper is None else self.stepper.step

    # --- from start to end -----------------------------------------------------------------------------------

    def _outcome(self) -> Outcome:
        attempt = self.attempt
        try:
            with attempt.stop.interruptible():
                started = start(attempt)
        except RunStopped:
            # Whatever was saved before is all there is: the attempt has added nothing.
            latest = attempt.checkpoints.latest()
            return self._ended("stopped", step=latest or 0, saved=latest)
        self.stepper = Stepper(attempt, started)
        if started.evaluation_due and self._evaluate(started, self.stepper):
            self._steer(started, self.stepper)
        if self.step >= attempt.total:
            attempt.screen.say(already_there(self.step))
            return self._ended("done", step=self.step, saved=attempt.checkpoints.latest())
        finished = self._steps(started, self.stepper)
        saved = self.step if self.stepper.has_stepped else attempt.checkpoints.latest()
        return self._ended("done" if finished else "stopped", step=self.step, saved=saved)

    def _steps(self, started: Started, stepper: Stepper) -> bool:
        """Steps to the end of the run, False to a signal; the last state is being saved when it returns."""
        attempt, config = self.attempt, self.attempt.config
        loader = config.loader.build(
            source=attempt.trainer.source,
            global_batch=config.batch_size,
            local_rows=stepper.rows,
            start_row=stepper.next_row,
        )
        attempt.screen.begin(attempt.total, stepper.step)
        with contextlib.closing(iter(loader)) as batches:
            attempt.sections.enter("data", stepper.step)
            kept = stepper.left_out.included(batches, stepper.left_out.batch_of(stepper.step))
            ahead = ReadAhead(kept, attempt.stop)
            while ahead.batch is not None and stepper.step < attempt.total and not self.stopped_by:
                attempt.sections.enter("step", stepper.step)
                stepper.take(ahead.batch)
                attempt.sections.enter("data", stepper.step)
                ahead.read()
                if stepper.is_computing:
                    attempt.sections.was("step")
                last = stepper.step >= attempt.total or ahead.ended
                if attempt.stop.reached(stepper.step):
                    attempt.sections.enter("end", stepper.step)
                    stepper.drain()
                    due = last or stepper.step % config.evaluation.every_steps == 0
                    return self._finished(started, stepper, ahead.batch, evaluated=not due, complete=False)
                if not last and not self._between(started, stepper):
                    return self._finished(started, stepper, ahead.batch, evaluated=False, complete=False)
        if stepper.step < attempt.total and not self.stopped_by:
            ahead.check()
            # Steps that were taken are saved below, however late in the data a signal comes.
            if attempt.stop.asked and not stepper.has_stepped:
                return False
        elif ahead.error is not None:
            # It isn't needed: a run that has all its steps must not fail for one more batch.
            logger.warning("the batch after the last can't be read: %s", ahead.error)
        attempt.sections.enter("end", stepper.step)
        # Only now is the last loss known to be finite; what is evaluated and saved below must be.
        stepper.drain()
        evaluated = self._evaluate(started, stepper, final=True)
        return self._finished(started, stepper, ahead.batch, evaluated=evaluated, complete=evaluated)

    def _finished(
        self, started: Started, stepper: Stepper, upcoming: Batch | None, *, evaluated: bool, complete: bool
    ) -> bool:
        """Saves and tries the last state; returns `complete`."""
        # Before the first step there is nothing that the same command wouldn't make again, and no step has tried it.
        if stepper.has_stepped:
            self._save(started, stepper, evaluation_due=not evaluated, last=True)
            stepper.try_on(upcoming)
        return complete

    def _between(self, started: Started, stepper: Stepper) -> bool:
        """Evaluates and saves where it is time to; False where a signal cut the evaluation short."""
        config = self.attempt.config
        if stepper.step % config.evaluation.every_steps == 0:
            stepper.drain()
            if not self._evaluate(started, stepper):
                return False
            self._steer(started, stepper)
        if stepper.step % config.checkpoints.every_steps == 0:
            stepper.drain()
            self._save(started, stepper)
        elif self.attempt.checkpoints.due(stepper.step):
            stepper.drain()
            self._save(started, stepper, quick=True)
        return True

    def _ended(self, kind: Literal["done", "stopped"], step: int, saved: int | None) -> Outcome:
        attempt = self.attempt
        by_sigterm = kind == "stopped" and attempt.stop.signal is signal.SIGTERM
        return Outcome(
            kind="preempted" if by_sigterm else kind,
            run=attempt.run.place,
            step=step,
            total_steps=attempt.total,
            start_step=attempt.run.start_step,
            saved=None if saved is None else attempt.checkpoints.location(saved),
            signal="" if kind == "done" else attempt.stop.name,
            loss=None if self.stepper is None else self.stepper.last_loss,
            evaluation=self.evaluation,
            reason=self.stopped_by,
        )

    # --- evaluating and saving -------------------------------------------------------------------------------

    def _evaluate(self, started: Started, stepper: Stepper, *, final: bool = False) -> bool:
        """Evaluates and writes a sample; False where a signal cut it short, without a record."""
        attempt, policy = self.attempt, self.attempt.config.evaluation
        state = stepper.state.state
        params = attempt.trainer.evaluated(stepper.state.params, stepper.state.opt)
        with attempt.screen.phase(f"step {stepper.step}: evaluating"), attempt.sections.within("evaluate"):
            faults.reached("in_evaluation")
            limit = policy.final_batches if final else policy.max_batches
            record = started.evaluator.evaluate(params, state, limit, until=lambda: attempt.stop.asked)
            if started.rollouts is not None and not attempt.stop.asked:
                rewards = started.rollouts.evaluate(params, state)
                record = record if record is None or rewards is None else record | rewards
            record = with_scores(record, started.tasks, params, state, until=lambda: attempt.stop.asked)
        if attempt.stop.asked:
            return False
        if record is not None:
            if final and policy.trigram_baseline and attempt.run.is_primary:
                record |= self._baseline()
            self.evaluation = attempt.journal.write("eval", step=stepper.step, final=final, **record)
            attempt.screen.evaluation(self.evaluation)
            if "loss" in record:
                stepper.check_evaluation(record["loss"])
        if started.sampler is not None:
            with attempt.screen.phase(f"step {stepper.step}: writing a sample"), attempt.sections.within("evaluate"):
                attempt.journal.write("sample", step=stepper.step, **started.sampler.sample(params, state))
        attempt.journal.write("memory", step=stepper.step, **memory_peaks())
        return True

    def _baseline(self) -> dict[str, float]:
        with self.attempt.screen.phase("counting trigrams"):
            baseline = trigram_nats_per_byte(self.attempt.trainer.source)
        if baseline is None:
            return {}
        self.attempt.screen.say(f"a byte-trigram table scores {baseline:.4f} nats/byte on the same files")
        return {"trigram_nats_per_byte": baseline}

    def _save(
        self,
        started: Started,
        stepper: Stepper,
        *,
        evaluation_due: bool = False,
        last: bool = False,
        quick: bool = False,
    ) -> None:
        """Starts a save, which counts after the next step. One that failed has its own event and line.

        One that would wait for a slow storage is left out: training continues. Raises CheckpointSaveError only for the
        `last` one: an end that can't be saved is no end.
        """
        attempt = self.attempt
        if not last:
            self._check_unsaved()
        if not last and self._is_writing():
            if not quick:
                # Of a storage that hangs nothing else ever fails.
                attempt.journal.failed_saves += 1
                attempt.journal.write("checkpoint_skipped", step=stepper.step, reason="the last one is still written")
                attempt.screen.say(f"training continues without checkpoint {stepper.step}: the last is still written")
            return
        data = {"row": stepper.next_row, "digest": started.digest, **stepper.unrepeatable()}
        # Absent unless it is needed, so that a checkpoint of other data reads as it always did.
        if source := attempt.trainer.source.saved(stepper.next_row):
            data["source"] = source
        for again in (True, False):
            try:
                with attempt.sections.within("save"):
                    begun = attempt.checkpoints.save(
                        stepper.step,
                        params=stepper.state.params,
                        state=stepper.state.state,
                        opt=stepper.state.opt,
                        data=data | ({"evaluation_due": True} if evaluation_due else {}),
                        meta=attempt.run.meta() | {KERNELS: started.kernels.as_json()},
                        provisional=True,
                        **({"quick": True} if quick else {}),
                    )
            except CheckpointSaveError:
                if again:
                    continue
                if last:
                    raise
                attempt.screen.say(f"training continues without checkpoint {stepper.step}")
                return
            if begun:
                stepper.saved()
            return

    def _check_unsaved(self) -> None:
        """Raises CheckpointSaveError where training on without a checkpoint is no longer wanted."""
        policy, journal = self.attempt.config.checkpoints, self.attempt.journal
        failures, minutes = policy.most_failed_saves, policy.most_unsaved_minutes
        if failures is None and minutes is None:
            return
        unsaved = (time.monotonic() - journal.saved_at) / 60
        has_failed = failures is not None and journal.failed_saves >= failures
        # All processes of a gang stop, or none.
        if of_primary(int(has_failed or (minutes is not None and unsaved > minutes))):
            many = f"{journal.failed_saves} save{' has' if journal.failed_saves == 1 else 's in a row have'} failed"
            mend = "Mend the storage" if stands_for(self.attempt.run.path) else "Free space or mend the storage"
            limit = f"most_failed_saves={failures}"
            if minutes is not None and not has_failed:
                limit = f"most_unsaved_minutes={minutes:g}"
            message = (
                f"{many}, and nothing was saved for {unsaved:.1f} minutes: checkpoints.{limit} ends the run. {mend}, "
                "and run the same command again: it resumes from the newest checkpoint"
            )
            raise CheckpointSaveError(message)

    def _steer(self, started: Started, stepper: Stepper) -> None:
        """Does what services ask for after an evaluation, and records it."""
        attempt = self.attempt
        if self.evaluation is None:
            self.steering.without_evaluation()
            return
        decision = self.steering.decided(self.evaluation)
        if not decision.reasons:
            return
        attempt.journal.write("steered", step=stepper.step, **dataclasses.asdict(decision))
        attempt.screen.say(f"step {stepper.step}: {'; '.join(decision.reasons)}")
        if decision.rate != 1.0:
            state = with_rate(stepper.state, decision.rate)
            if state is None:
                attempt.screen.say("the learning rate stays: only a run with --set learner.steerable=true changes it")
            else:
                stepper.state = state
        if decision.stop:
            self.stopped_by = decision.stop_reason
        elif decision.save and stepper.step % attempt.config.checkpoints.every_steps != 0:
            self._save(started, stepper)

    def _is_writing(self) -> bool:
        """Whether the last save is still written, which takes the checkpointer's patience to be sure of."""
        with self.attempt.sections.within("save"):
            return self.attempt.checkpoints.is_writing()

    # --- on the way out --------------------------------------------------------------------------------------

    def _drain_quietly(self) -> None:
        """Records the last step on the way out of an error, and decides on the last save, if both can be done."""
        if self.stepper is None:
            return
        try:
            self.stepper.drain()
            # The others of a gang are not here, and a step needs all of them.
            if jax.process_count() == 1:
                self.stepper.try_on(None)
        except Exception:  # noqa: BLE001 - the error that is on its way out matters more than what it leads to
            logger.debug("the last step can't be recorded", exc_info=True)

    def _close_quietly(self) -> None:
        """Lets a save that is under way finish: the run's lock must outlive it, and so must the interpreter."""
        try:
            self.attempt.checkpoints.close()
        except KanawaError:
            logger.debug("the last save failed, as its event says", exc_info=True)

    def _after_a_failed_save(self) -> str:
        latest, stop = self.attempt.checkpoints.latest(), self.attempt.stop
        kept = "there is no checkpoint yet" if latest is None else f"the newest intact step is {latest}"
        ended = f"stopped by {stop.name}" if stop.name else "ended"
        return f"{ended} after step {self.step}, which is not saved; {kept}"

    def _wait_a_little_for_the_save(self) -> None:
        """Lets a save finish that needs no lost peer any more; one that does would wait for many minutes."""
        thread = threading.Thread(target=self._close_quietly, daemon=True)
        thread.start()
        thread.join(_SAVE_SECONDS)

    def stopping(self, name: str) -> None:
        """Answers the first signal; runs on the thread that watches them."""
        what = "before the first step" if self.stepper is None else f"after step {self.step}, once that is saved"
        self.attempt.screen.say(f"stopping ({name}) {what}; press Ctrl-C again to stop at once")

    def stopped_at_once(self, name: str) -> None:
        """Ends the process at a second Ctrl-C, while the main thread may be anywhere."""

        def leave_word() -> None:
            self.attempt.screen.close()
            latest = self.attempt.checkpoints.latest()
            kept = "nothing was saved" if latest is None else f"the newest checkpoint is {shown(self._at(latest))}"
            self.attempt.screen.say(f"stopped at once by {name}; {kept}\nto resume: {self.command}")
            self.attempt.journal.write("run_ended", outcome="interrupted", step=self.step, signal=name)

        # The main thread may hold a lock that this needs: then the words are lost, but the process ends.
        thread = threading.Thread(target=leave_word, daemon=True)
        thread.start()
        thread.join(_LAST_WORDS_SECONDS)
        os._exit(128 + signal.SIGINT)

    def _at(self, step: int) -> str:
        return self.attempt.checkpoints.location(step)
