"""Gangs of real processes on this machine, as `kanawa launch` or a cluster would start them."""

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import tiny_lm
from ports import free_port
from xla_options import xla_flags

#: A process that never joins is waited for five minutes by JAX, and this machine may be busy.
ROOMY_SECONDS = 400


def start(run: pathlib.Path, devices: int, *options: str, experiment: str = "tiny-lm") -> subprocess.Popen:
    """Starts one process of an experiment, the tiny one unless another is named, on so many devices."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(devices), "PYTHONPATH": tiny_lm.FOLDER}
    command = [sys.executable, "-m", "kanawa.cli", "train", experiment, "--run", str(run), *options]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def start_gang(
    run: pathlib.Path, *options: str, processes: int = 2, devices: int = 8, experiment: str = "tiny-lm"
) -> list[subprocess.Popen]:
    """Starts processes that share so many devices."""
    address = f"127.0.0.1:{free_port()}"
    joined = ("--coordinator", address, "--processes", str(processes), *options)
    each = devices // processes
    return [start(run, each, *joined, "--process-id", str(index), experiment=experiment) for index in range(processes)]


def finish(*processes: subprocess.Popen) -> tuple[list[int], str]:
    """Returns exit codes as a shell reports them, and what was said on the error streams."""
    # All at once: a process whose pipe is full stops, and the others wait for it.
    with ThreadPoolExecutor(len(processes)) as pool:
        errors = list(pool.map(lambda process: process.communicate(timeout=ROOMY_SECONDS)[1], processes))
    codes = [process.returncode if process.returncode >= 0 else 128 - process.returncode for process in processes]
    return codes, "\n".join(errors)


def wait_for(gang: list[subprocess.Popen], condition: Callable[[], bool]) -> None:
    """Returns once the condition holds, or a process has ended."""
    deadline = time.monotonic() + ROOMY_SECONDS
    while not condition() and all(process.poll() is None for process in gang):
        assert time.monotonic() < deadline, "the gang makes no progress"
        time.sleep(0.01)
