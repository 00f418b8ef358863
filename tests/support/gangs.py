"""Gangs of real processes on this machine, as `kanawa launch` or a cluster would start them, forked by a nursery."""

import itertools
import pathlib
import time
from collections.abc import Callable

from nursery import Child, Nursery
from ports import free_port
from xla_options import xla_flags

#: A process that never joins is waited for five minutes by JAX, and this machine may be busy.
ROOMY_SECONDS = 400
_NUMBERS = itertools.count()


def start(
    nursery: Nursery, run: pathlib.Path, devices: int, *options: str, experiment: str = "tiny-lm", fault: str = ""
) -> Child:
    """Starts one process of an experiment, the tiny one unless another is named, on so many devices."""
    environment = {"XLA_FLAGS": xla_flags(devices), "KANAWA_FAULT": fault}
    run.parent.mkdir(parents=True, exist_ok=True)
    said = run.with_name(f"{run.name}.{next(_NUMBERS)}")
    return nursery.start(["train", experiment, "--run", str(run), *options], said, environment)


def start_gang(
    nursery: Nursery,
    run: pathlib.Path,
    *options: str,
    processes: int = 2,
    devices: int = 8,
    experiment: str = "tiny-lm",
    fault: str = "",
) -> list[Child]:
    """Starts processes that share so many devices."""
    joined = ("--coordinator", f"127.0.0.1:{free_port()}", "--processes", str(processes), *options)
    each = devices // processes
    return [
        start(nursery, run, each, *joined, "--process-id", str(index), experiment=experiment, fault=fault)
        for index in range(processes)
    ]


def finish(*processes: Child) -> tuple[list[int], str]:
    """Returns exit codes as a shell reports them, and what was said."""
    codes = [process.wait(ROOMY_SECONDS) for process in processes]
    return [code if code >= 0 else 128 - code for code in codes], "\n".join(each.text() for each in processes)


def wait_for(gang: list[Child], condition: Callable[[], bool]) -> None:
    """Returns once the condition holds, or a process has ended."""
    deadline = time.monotonic() + ROOMY_SECONDS
    while not condition() and all(process.poll() is None for process in gang):
        assert time.monotonic() < deadline, "the gang makes no progress"
        time.sleep(0.01)
