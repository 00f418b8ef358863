"""What a run does for its records beside each step: events, time log, watchdog, hooks; against a step of 20 ms.

Run: `nox -s benchmarks -- step_services` or `python benchmarks/step_services.py [--steps 5000]`. Prints one JSON
object; exit code 1 where it takes more than a hundredth of the step. Processor time of all threads of the process is
what counts, since all of them take the interpreter's lock from the one that trains: this can run beside other work.
"""

import argparse
import functools
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.experiments.quickstart import quickstart
from kanawa_runtime.goodput.sections import Sections
from kanawa_runtime.goodput.time_log import TimeLog
from kanawa_runtime.runs.run_directory import RunDirectory
from kanawa_runtime.services.host import ServiceHost
from kanawa_runtime.services.watchdog import Watchdog
from kanawa_runtime.train.attempt import Journal

STEP_SECONDS, LIMIT = 0.020, 0.01
METRICS = {name: 1.2345678 + i for i, name in enumerate(("cross_entropy", "gradient_norm", "learning_rate", "z_loss"))}


def each(steps: int, step: Callable[[int], object]) -> dict[str, float]:
    """Returns milliseconds a step: of the calling thread, of all threads, and by the clock."""
    clocks = {"thread": time.thread_time, "process": time.process_time, "wall": time.perf_counter}
    for number in range(200):
        step(number)
    before = {name: clock() for name, clock in clocks.items()}
    for number in range(200, 200 + steps):
        step(number)
    return {name: (clock() - before[name]) / steps * 1e3 for name, clock in clocks.items()}


def measured(folder: Path, steps: int) -> dict[str, dict[str, float]]:
    """Returns milliseconds a step of all records together, and of each kind alone."""
    config = quickstart()
    config.set(data=RandomTokens.Config(sequence_length=64, vocab_size=256))
    with RunDirectory.open(folder / "run", config) as run:
        services = ServiceHost([Watchdog.Config(alone=True).build()])
        time_log = TimeLog(run.path, run.events())
        journal = Journal(run, services, time_log)
        section = functools.partial(services.section, run)
        sections = Sections(time_log.enter, section)
        services.start(run)

        def told(number: int) -> None:
            sections.enter("step", number)
            sections.enter("data", number + 1)

        def written(number: int) -> None:
            journal.write("step", step=number + 1, loss=2.5, tokens=8192.0, seconds=0.02, metrics=METRICS)

        def both(number: int) -> None:
            told(number)
            written(number)

        kinds = {"all": both, "sections": told, "events": written, "nothing": lambda number: number}
        result = {name: each(steps, step) for name, step in kinds.items()}
        journal.write("run_ended", outcome="done", step=steps)
        journal.close()
    return result


def main() -> int:
    """Prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        milliseconds = measured(Path(folder), options.steps)
    share = milliseconds["all"]["process"] / 1e3 / STEP_SECONDS
    record = {
        "milliseconds_a_step": milliseconds,
        "step_seconds": STEP_SECONDS,
        "share_of_the_step": share,
        "limit": LIMIT,
        "versions": {"jax": jax.__version__, "python": platform.python_version(), "machine": platform.machine()},
    }
    sys.stdout.write(json.dumps(record, indent=1) + "\n")
    return int(share > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
