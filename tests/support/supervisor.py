"""Starts gangs of the tiny experiment, breaks them as asked, starts them again, and compares what came of it.

Two runs are the same where every step has the same loss, bit for bit, in every attempt that took it, and the last
checkpoints have the same digests. Imports no JAX: what it reads are the files that a run leaves.
"""

import dataclasses
import json
import pathlib
import re
import time
from collections.abc import Sequence

from kanawa_runtime.exit_codes import verdict
from nursery import Child, Nursery, wait_until
from ports import free_port

#: How long the rest of a gang may take to end once one of it has, before it is killed.
PATIENCE_SECONDS = 5.0
MOST_ATTEMPTS = 20
_TAIL_BYTES = 4096
_STEP = re.compile(rb'"event": "step", "attempt": \d+, "step": (\d+)')


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run computed: each step's loss in hexadecimal, and the digest of each array of its newest checkpoint."""

    losses: dict[int, str]
    digests: dict[str, str]


class Supervisor:
    """One run of a gang of `processes`, each on one device; `options` are those of every attempt."""

    def __init__(
        self,
        nursery: Nursery,
        run: pathlib.Path,
        processes: int = 1,
        options: Sequence[str] = (),
        experiment: str = "tiny-lm",
    ) -> None:
        self._experiment = experiment
        self.run = run
        self.processes = processes
        self._nursery = nursery
        self._options = list(options)
        self._started = self._before = 0

    def start(self, fault: str = "", options: Sequence[str] = ()) -> list[Child]:
        """Starts all processes once; `fault` is what KANAWA_FAULT says to them."""
        self._started += 1
        self._before = _size_of_events(self.run)
        joined: list[list[str]] = [[]]
        if self.processes > 1:
            gang = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", str(self.processes)]
            joined = [[*gang, "--process-id", str(rank)] for rank in range(self.processes)]
        command = ["train", self._experiment, "--run", str(self.run), *self._options, *options]
        self.run.parent.mkdir(parents=True, exist_ok=True)
        return [
            self._nursery.start(
                [*command, *place], self.run.parent / f"{self.run.name}.{self._started}.{rank}", {"KANAWA_FAULT": fault}
            )
            for rank, place in enumerate(joined)
        ]

    def finish(self, gang: Sequence[Child], patience: float = PATIENCE_SECONDS) -> list[int]:
        """Returns the exit codes; once one has ended badly, the others have so long before they are killed."""
        while any(child.poll() is None for child in gang) and not any(child.poll() for child in gang):
            time.sleep(0.02)
        deadline = time.monotonic() + patience
        while any(child.poll() is None for child in gang):
            if time.monotonic() > deadline and any(child.poll() for child in gang):
                for child in gang:
                    child.kill()
            time.sleep(0.02)
        return [child.wait() for child in gang]

    def to_the_end(self, attempts: int = MOST_ATTEMPTS) -> Result:
        """Starts the gang, unharmed, until all of it ends with 0; returns what it computed."""
        said = ""
        for _ in range(attempts):
            gang = self.start()
            codes = self.finish(gang)
            if set(codes) == {0}:
                return result(self.run)
            said = "\n".join(child.text()[-1500:] for child in gang)
            assert any(code < 0 or verdict(code) == "retry" for code in codes), (codes, said)
        raise AssertionError(said)

    def wait_for_step(self, step: int, gang: Sequence[Child]) -> None:
        """Returns once the processes started last have recorded a step so high, or one of them has ended."""
        wait_until(lambda: last_step(self.run, self._before) >= step, *gang)


def events(run: pathlib.Path) -> list[dict]:
    """Returns the records of a run; torn lines are none."""
    records = []
    path = run / "events.jsonl"
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def last_step(run: pathlib.Path, since: int = 0) -> int:
    """Returns the step that was recorded last, behind so many bytes; costs a look at the end of the file."""
    size = _size_of_events(run)
    if size <= since:
        return 0
    with (run / "events.jsonl").open("rb") as file:
        file.seek(max(since, size - _TAIL_BYTES))
        steps = _STEP.findall(file.read())
    return int(steps[-1]) if steps else 0


def _size_of_events(run: pathlib.Path) -> int:
    path = run / "events.jsonl"
    return path.stat().st_size if path.exists() else 0


def committed(run: pathlib.Path) -> list[int]:
    """Returns the steps whose checkpoints count."""
    folders = (path.parent.name for path in (run / "checkpoints").glob("*/COMMIT.json"))
    return sorted(int(name) for name in folders if name.isdecimal())


def result(run: pathlib.Path) -> Result:
    """Returns what a run computed; fails where two attempts took a step and disagree."""
    losses: dict[int, str] = {}
    for event in events(run):
        if event["event"] == "step":
            loss = float(event["loss"]).hex()
            before = losses.setdefault(event["step"], loss)
            assert before == loss, f"step {event['step']} of {run} had the loss {before}, and {loss} when taken again"
    return Result(dict(sorted(losses.items())), digests(run))


def digests(run: pathlib.Path) -> dict[str, str]:
    """Returns the digest of each array of the newest checkpoint."""
    newest = run / "checkpoints" / str(committed(run)[-1])
    manifest = json.loads((newest / "manifest.json").read_bytes())
    return {
        f"{item}: {path}": entry["digest"]
        for item, entries in manifest["arrays"].items()
        for path, entry in entries.items()
    }
