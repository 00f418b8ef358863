"""A warm start of a gang compiles its step no time, and whatever becomes of the cache's files, every loss is the same.

KANAWA_DRILLS sets how often the nightly one strikes, PYTEST_SEED repeats its chances.
"""

import os
import pathlib
import random
import signal

import pytest
from drills import drill_seed
from kanawa_runtime.compile_cache import SUFFIX
from nursery import Nursery
from supervisor import Supervisor, events, result

OPTIONS = ("--steps", "6", "--set", "checkpoints.every_steps=6")
#: Programs while whose writing a process is killed.
KEPT = 4
MANY = int(os.environ.get("KANAWA_DRILLS", "20"))


def flipped(files, rng):
    """Flips one bit of each."""
    for file in files:
        data = bytearray(file.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)


def cut(files, rng):
    """Leaves the beginning of each."""
    for file in files:
        os.truncate(file, rng.randrange(1, file.stat().st_size))


def emptied(files, rng):
    """Leaves nothing of each."""
    del rng
    for file in files:
        os.truncate(file, 0)


def swapped(files, rng):
    """Each has what another one had, whole."""
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, contents[1:] + contents[:1], strict=True):
        file.write_bytes(content)


def replaced(files, rng):
    """Each has bytes of no meaning, or is a folder."""
    for file in files:
        if rng.random() < 0.2:
            file.unlink()
            file.mkdir()
        else:
            file.write_bytes(rng.randbytes(file.stat().st_size))


SPOILS = (flipped, cut, emptied, swapped, replaced)


@pytest.fixture
def train(tmp_path):
    """Returns what starts a gang of so many on one cache; gives whether its step was kept, and what it computed."""
    cache = tmp_path / "cache"
    cached = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    with Nursery(cached) as nursery:

        def once(name, processes, fault=""):
            supervisor = Supervisor(nursery, tmp_path / name, processes, OPTIONS)
            if fault:
                codes = supervisor.finish(supervisor.start(fault))
                assert -signal.SIGKILL in codes, codes
            gang = supervisor.start()
            assert supervisor.finish(gang) == [0] * processes, "\n".join(child.text()[-2000:] for child in gang)
            *_, program = [event for event in events(supervisor.run) if event["event"] == "program"]
            return program["from_cache"], result(supervisor.run)

        once.entries = lambda: sorted(pathlib.Path(cache).glob(f"*{SUFFIX}"))
        yield once


def drilled(train, rng, processes, spoils):
    """Spoils the cache of a gang in each way, one after the other."""
    was_kept, cold = train("cold", processes)
    assert not was_kept
    assert train("warm", processes) == (True, cold)
    for number, spoil in enumerate(spoils):
        files = train.entries()
        assert any("train_step" in file.name for file in files)
        spoil(files, rng)
        assert train(f"spoilt-{number}", processes) == (False, cold), spoil.__name__
        for file in train.entries():
            if file.is_dir():
                file.rmdir()
        # What was compiled anew is kept anew.
        assert train(f"again-{number}", processes)[1] == cold


@pytest.mark.nightly
def test_entries_that_are_whole_but_of_other_programs_are_none(train):
    drilled(train, random.Random(0), 1, [swapped])


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_poisoned_cache_changes_nothing_of_a_gang(train, record_drill):
    rng = random.Random(drill_seed())
    each = [SPOILS[number % len(SPOILS)] for number in range(MANY)]
    drilled(train, rng, 4, each)
    counts = ", ".join(f"{each.count(spoil)} {spoil.__name__}" for spoil in SPOILS)
    record_drill(
        f"drill: {MANY} of {MANY} poisoned caches of a gang of four ({counts}) gave the same bits; a warm one compiled "
        "0 steps"
    )


@pytest.mark.nightly
def test_a_gang_killed_while_it_keeps_a_program_leaves_nothing_that_counts(train, record_drill):
    """At each of the first programs: half of one may lie there, beside those that count."""
    _, cold = train("cold", 4)
    for number in range(1, KEPT + 1):
        for file in train.entries():
            file.unlink()
        assert train(f"torn-{number}", 4, f"in_cache_write:torn:{number}")[1] == cold
    record_drill(f"drill: {KEPT} of {KEPT} gangs of four killed while they kept a program gave the same bits")
