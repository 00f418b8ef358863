"""`kn.train` and `kn.open`: runs from Python; kanawa-runtime has both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kanawa.api.experiment import Experiment, Modify, Set
from kanawa.api.provided import provided
from kanawa.config import Config
from kanawa.contracts import TrainedRun


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
) -> TrainedRun:
    """Trains an experiment in this process, or resumes its run, and returns the run.

    Ctrl-C and SIGTERM finish the step, save and return: `outcome.kind` is then "stopped" or "preempted". A second
    Ctrl-C raises KeyboardInterrupt. The process is never ended.

    Args:
        what: the experiment, and `modify`, `set` and `data`: as `kn.experiment` takes them.
        run: the run's folder or address; made if need be. None: runs/NAME, or the run that was named.
        steps: updates that the run is to have in total; None: as many as the experiment says.
        on: hardware to compose for; None: the experiment's target, else this machine's devices.
        init_from: a run or a Hugging Face folder whose weights a new run starts from.
        from_step: the checkpoint of the run to resume from; later ones are set aside. None: the newest.
        leave_out: batches to take no more, counted from 1: "16:21".
        branch_from: "RUN@STEP", where a new run goes on from, optimizer and data position included.
        eval_data: further data to evaluate on, all of them, each as "NAME=DATA".
        progress: whether to show progress: a bar on a terminal and in a notebook, lines elsewhere.

    Raises UsageError for a folder that holds a run of another experiment.
    """
    made: TrainedRun = provided("train")(
        what, run=run, steps=steps, on=on, modify=modify, set=set, data=data, init_from=init_from, from_step=from_step,
        leave_out=leave_out, branch_from=branch_from, eval_data=eval_data, progress=progress,
    )  # fmt: skip
    return made


def open(  # noqa: A001 - it is read as `kn.open`
    path: str | Path,
    *,
    step: int | None = None,
    on: str | None = None,
    modify: Modify = (),
    set: Set = (),  # noqa: A002 - as `--set`
    data: str | None = None,
) -> TrainedRun:
    """Returns a run, or a Hugging Face folder, for use: `kn.open`.

    Nothing of the model is read before it is needed: events of a large run are there at once.

    Args:
        path: a run's folder or address, or a folder of another library.
        step: the checkpoint to use; None: the newest.
        on: hardware to use it on; None: this machine's devices. The mesh it was trained on doesn't matter.
        modify: modifiers, applied in order.
        set: config values to use it with.
        data: data to evaluate on instead of the run's own.

    Raises UsageError, with near names, where there is no run and no model.
    """
    opened: TrainedRun = provided("open")(path, step=step, on=on, modify=modify, set=set, data=data)
    return opened
