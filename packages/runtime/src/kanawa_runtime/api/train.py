"""`kn.train`: trains in the caller's process, and never ends it."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from kanawa.api.experiment import Experiment, Modify, Set, experiment
from kanawa.composition.target import local_target
from kanawa.config import Config
from kanawa.errors import UsageError

from kanawa_runtime.api.run import Run
from kanawa_runtime.data.other_data import evaluation_sets
from kanawa_runtime.experiments.folders import run_and_start
from kanawa_runtime.process import prepare_process
from kanawa_runtime.storage.place import check_place, run_place
from kanawa_runtime.train.batches import asked_to_leave_out
from kanawa_runtime.train.branch import Branch, branch_at
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import Screen
from kanawa_runtime.train.terminal import screen_here


def train(
    what: str | Path | Config | Experiment,
    *,
    run: str | Path | None = None,
    steps: int | None = None,
    on: str | None = None,
    modify: Modify = (),
    set: Set = (),  # noqa: A002 - as `--set`
    data: str | None = None,
    init_from: str | Path | None = None,
    from_step: int | None = None,
    leave_out: str | None = None,
    branch_from: str | None = None,
    eval_data: str | Sequence[str] = (),
    progress: bool = True,
) -> Run:
    """Trains and returns the run: see `kanawa.train`."""
    for option, place in (("run", run), ("init_from", init_from)):
        check_place(str(place or ""), option)
    prepare_process()
    with _progress(progress) as screen:
        with screen.phase("composing"):
            asked = experiment(what, on=on, modify=modify, set=set, data=data)
            here = local_target() if asked.target is None else None
            if here is not None:
                asked = asked.for_target(here)
        if run is None and isinstance(asked.what, Config):
            message = "a config has no name to call its run by: say where it trains, as in run='runs/mine'"
            raise UsageError(message)
        loop = training_loop(
            asked, run=run, steps=steps, init_from=init_from, from_step=from_step, leave_out=leave_out,
            branch_from=branch_from, eval_data=(eval_data,) if isinstance(eval_data, str) else eval_data,
            screen=screen, owns_process=False,
        )  # fmt: skip
        outcome = loop.execute()
    return Run(loop.run.place, outcome=outcome)


def training_loop(
    asked: Experiment,
    *,
    run: str | Path | None,
    steps: int | None,
    init_from: str | Path | None,
    from_step: int | None,
    leave_out: str | None = None,
    branch_from: str | None = None,
    eval_data: Sequence[str] = (),
    screen: Screen,
    owns_process: bool,
    command: str = "",
) -> Loop:
    """Returns the loop of one attempt at a run, its directory open; `execute` trains.

    `owns_process`: whether a second Ctrl-C ends the process; `command` is what a person would type to resume.
    """
    with screen.phase("building"):
        if eval_data:
            asked = experiment(asked, set={"evaluation.sets": evaluation_sets(asked.config, eval_data)})
        directory, initial = run_and_start(
            asked.composition, None if run is None else str(run), None if init_from is None else str(init_from)
        )
        branch = None if branch_from is None else branch_at(branch_from)
        if branch is not None:
            _check_branch(run, init_from, from_step, branch)
            initial = None
        return Loop(
            asked.composition,
            directory,
            steps=steps,
            initial=initial,
            from_step=from_step,
            leave_out=None if leave_out is None else asked_to_leave_out(leave_out),
            branch=branch,
            screen=screen,
            owns_process=owns_process,
            command=command,
        )


def _check_branch(run: str | Path | None, init_from: str | Path | None, from_step: int | None, branch: Branch) -> None:
    if run is None or str(run_place(str(run), "--run")) in (branch.place, str(branch.folder)):
        message = "--branch-from begins a run of its own: name its directory with --run DIR"
        raise UsageError(message)
    if init_from is not None:
        message = "--branch-from takes parameters and optimizer of a checkpoint; it goes without --init-from"
        raise UsageError(message)
    if from_step is not None:
        message = (
            f"--from-step {from_step} is of the run that is resumed; where another run is branched from, its step "
            f"follows an @: --branch-from {branch.place}@{from_step}"
        )
        raise UsageError(message)


@contextlib.contextmanager
def _progress(shown: bool) -> Iterator[Screen]:
    screen = screen_here() if shown else Screen()
    try:
        yield screen
    finally:
        screen.close()
