"""A real run whose storage is full, read-only, gone, slow or answering 503 for a minute: it trains on and saves again.

Real file systems of this machine's root, and a real S3 server; KANAWA_OUTAGE_SECONDS sets how long each lasts.
"""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_lm
from kanawa_runtime.checkpoint import OrbaxCheckpointer, ShardedCheckpointer
from kanawa_runtime.runs.events import read_events, step_records
from kanawa_runtime.runs.open_run import open_run
from kanawa_runtime.storage.mirror import readable_folder
from s3_server import BUCKET, s3_server
from xla_options import xla_flags

OUTAGE = float(os.environ.get("KANAWA_OUTAGE_SECONDS", "60"))
#: A step takes so long, by a fault that sleeps, and a save is due every few of them.
STEP, EVERY = 0.2, 10
STEPS = int((OUTAGE + 30) / STEP)
#: No step may wait for storage any longer; patience with a save that is still written is the one wait there is.
MOST_SECONDS_A_STEP = 15.0
INTERVAL = STEP * EVERY
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(os.getuid() != 0, reason="mounts take root"),
]
SLOW_SYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
int fsync(int descriptor) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    if (access(getenv("SLOW_WHILE"), F_OK) == 0) sleep(3);
    return real(descriptor);
}
"""


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


@dataclasses.dataclass
class Outage:
    """A place for a run, and what spoils and mends it."""

    run: str
    begin: Callable[[], object]
    end: Callable[[], object]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Whether saves must fail: a slow storage may take each of them.
    refuses: bool = True


@contextlib.contextmanager
def full(folder: Path):
    mount("-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder))
    ballast = folder / "ballast"

    def fill() -> None:
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)

    yield Outage(str(folder / "run"), fill, ballast.unlink)
    subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def read_only(folder: Path):
    """The checkpoints alone are read-only: a file system with a file open for writing can't be made so."""
    checkpoints = folder / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    mount("-t", "tmpfs", "tmpfs", str(checkpoints))

    def turn(mode: str) -> None:
        for _ in range(2000):
            done = subprocess.run(["mount", "-o", f"remount,{mode}", str(checkpoints)], capture_output=True)
            if done.returncode == 0:
                return
            time.sleep(0.01)
        raise AssertionError(done.stderr)

    yield Outage(str(folder / "run"), lambda: turn("ro"), lambda: turn("rw"))
    subprocess.run(["umount", "-l", str(checkpoints)], check=True)


@contextlib.contextmanager
def vanished(folder: Path):
    """The mount is lost, as a network's file system is, and comes back with all that was there."""
    disk, place = folder / "disk", folder / "place"
    disk.mkdir()
    place.mkdir()
    mount("--bind", str(disk), str(place))
    lose = ["umount", "-l", str(place)]
    yield Outage(
        str(place / "run"), lambda: subprocess.run(lose, check=True), lambda: mount("--bind", str(disk), str(place))
    )
    subprocess.run(lose, check=True)


@contextlib.contextmanager
def slow(folder: Path):
    """Every fsync takes three seconds, in whatever library."""
    source, library, flag = folder / "slow.c", folder / "slow.so", folder / "slow"
    source.write_text(SLOW_SYNC)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    environment = {"LD_PRELOAD": str(library), "SLOW_WHILE": str(flag)}
    yield Outage(str(folder / "run"), flag.touch, flag.unlink, environment, refuses=False)


@contextlib.contextmanager
def s3(folder: Path):
    with s3_server() as server:
        environment = server.environment | {"KANAWA_CACHE": str(folder / "cache")}
        yield Outage(f"s3://{BUCKET}/run", server.fail, server.mend, environment)


def start(run: str, kind: str, said: Path, environment: dict[str, str], *, slow_steps: bool = True) -> subprocess.Popen:
    options = {"checkpoints.every_steps": EVERY, "checkpoints.keep_last": 1000, "checkpointer": kind}
    fault = {"KANAWA_FAULT": f"in_step:sleep={STEP}:1+"} if slow_steps else {}
    command = [sys.executable, "-m", "kanawa.cli", "train", "tiny-lm", "--run", run, "--steps", str(STEPS)]
    with said.open("w") as stream:
        return subprocess.Popen(
            command + ["--on", "cpu"] + [f"--set={name}={value}" for name, value in options.items()],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": tiny_lm.FOLDER, "XLA_FLAGS": xla_flags()}
            | fault
            | environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert start(str(folder / "run"), "orbax", folder / "said", {}, slow_steps=False).wait(600) == 0
    return losses(folder / "run")


def losses(run) -> dict[int, float]:
    records = step_records(read_events(readable_folder(run) / "events.jsonl"))
    return {step: record["loss"] for step, record in records.items()}


def steps_of(run: str, kind: str) -> list[int]:
    keeper = ShardedCheckpointer if kind == "sharded" else OrbaxCheckpointer
    return keeper.Config().build(directory=f"{run}/checkpoints", read_only=True).steps()


CASES = [(full, "orbax"), (full, "sharded"), (read_only, "orbax"), (read_only, "sharded"), (vanished, "orbax")]
CASES += [(vanished, "sharded"), (slow, "orbax"), (slow, "sharded"), (s3, "sharded")]


@pytest.mark.parametrize(("kind", "checkpointer"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_training_goes_on_and_saves_again(tmp_path, undisturbed, monkeypatch, record_drill, kind, checkpointer):
    said = tmp_path / "said"
    with kind(tmp_path) as outage:
        for name, value in outage.environment.items():
            if not name.startswith("LD_"):
                monkeypatch.setenv(name, value)
        run = start(outage.run, checkpointer, said, outage.environment)
        try:
            deadline = time.monotonic() + 120
            while run.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(Exception):
                    if len(steps_of(outage.run, checkpointer)) >= 3:
                        break
                time.sleep(0.1)
            before = steps_of(outage.run, checkpointer)
            assert len(before) >= 3, said.read_text()[-3000:]
            outage.begin()
            began = time.time()
            time.sleep(OUTAGE)
            assert run.poll() is None, said.read_text()[-3000:]
            outage.end()
            ended = time.time()
            assert set(before) <= set(steps_of(outage.run, checkpointer))
            assert run.wait(300) == 0, said.read_text()[-3000:]
        finally:
            run.kill()
        assert losses(outage.run) == undisturbed
        told = read_events(readable_folder(outage.run) / "events.jsonl")
        times = [event["time"] for event in told if event["event"] == "step"]
        longest = max(b - a for a, b in zip(times, times[1:], strict=False))
        assert longest < MOST_SECONDS_A_STEP
        failed, skipped = (sum(e["event"] == f"checkpoint_{what}" for e in told) for what in ("failed", "skipped"))
        assert failed > 1 or not outage.refuses
        again = min(e["time"] for e in told if e["event"] == "checkpoint_committed" and e["time"] > ended) - ended
        trained = sum(began < at < ended for at in times)
        saved = steps_of(outage.run, checkpointer)
        assert set(before) <= set(saved)
        for step in (before[0], before[-1], saved[-1]):
            assert open_run(outage.run, step=step).step == step
        # The first save that is due once the storage is back counts; a slow one may still write the one before.
        due = [e["step"] for e in told if e["event"] == "step" and e["time"] > ended and e["step"] % EVERY == 0]
        assert due[0] in saved or (not outage.refuses and set(due[:8]) & set(saved))
        leftovers = [] if outage.run.startswith("s3:") else odd(Path(outage.run, "checkpoints"))
        assert not leftovers
    record_drill(
        f"drill: {kind.__name__} for {OUTAGE:g} s, {checkpointer}: {trained} steps trained meanwhile, the longest in "
        f"{longest:.1f} s; {failed} saves failed, {skipped} left out; the first due after it counts, {again:.1f} s "
        f"later (interval {INTERVAL:g} s); {len(before)} older steps intact, losses bit for bit"
    )
    shutil.rmtree(tmp_path, ignore_errors=True)


def odd(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.isdecimal()]
