"""A warm restart compiles the step not once, and a spoilt entry costs a compilation, never a crash or another loss."""

import os
import pathlib
import random

import pytest
from kanawa.plugins import PluginHost, hookimpl, host, set_host
from kanawa_runtime import faults
from kanawa_runtime.compile_cache import SUFFIX, CheckedFiles, finding, machine_key, sealed
from kanawa_runtime.runs.events import read_events
from nursery import Nursery

STEPS = 6


def test_an_entry_is_whole_or_not_there(tmp_path):
    files = CheckedFiles(tmp_path / "cache")
    assert files.get("program") is None
    files.put("program", b"machine code")
    assert files.get("program") == b"machine code"
    (path,) = (tmp_path / "cache").iterdir()
    rng = random.Random(0)
    for _ in range(50):
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        assert files.get("program") is None
        assert not path.exists()
        files.put("program", b"machine code")
    for length in range(len(path.read_bytes())):
        path.write_bytes(path.read_bytes()[:length])
        assert files.get("program") is None
        files.put("program", b"machine code")


def test_an_entry_of_another_program_is_none(tmp_path):
    files = CheckedFiles(tmp_path)
    files.put("one", b"machine code")
    (tmp_path / f"one{SUFFIX}").rename(tmp_path / f"other{SUFFIX}")
    assert files.get("other") is None


def test_two_hosts_that_share_a_folder_do_not_write_into_each_other_s_file(tmp_path, monkeypatch, caplog):
    """They may have one process number: the second keeps the same program while the first is half-way."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    here, there = CheckedFiles(tmp_path), CheckedFiles(tmp_path)

    def half_way(point, path=None):
        monkeypatch.setattr(faults, "reached", lambda point, path=None: None)
        there.put("program", b"machine code")

    monkeypatch.setattr(faults, "reached", half_way)
    here.put("program", b"machine code")
    assert here.get("program") == b"machine code"
    assert [path.name for path in tmp_path.iterdir()] == [f"program{SUFFIX}"]
    assert not caplog.records


def test_a_folder_that_refuses_costs_nothing_but_the_entry(tmp_path):
    (tmp_path / "cache").write_text("no folder")
    files = CheckedFiles(tmp_path / "cache")
    files.put("program", b"machine code")
    assert files.get("program") is None


def test_the_key_is_that_of_the_versions_and_of_the_machine_as_backends_report_it(monkeypatch):
    from importlib import metadata

    keys = [machine_key()]
    assert keys == [machine_key()]
    old = set_host(PluginHost(discover=list))
    try:
        host().register(Machine(), "machine")
        keys.append(machine_key())
        monkeypatch.setattr(metadata, "version", lambda name: "0.0.1")
        keys.append(machine_key())
    finally:
        set_host(old)
    assert len(set(keys)) == 3


class Machine:
    @hookimpl
    def kanawa_compile_cache_key(self):
        return ["an instruction set"]


def test_doctor_reports_where_programs_are_stored(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    found = finding()
    assert (found.level, found.message) == ("ok", f"compiled programs are stored in {tmp_path}/cache")
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(os, "access", lambda *asked: False)
    found = finding()
    assert (found.level, found.message) == ("warning", f"{tmp_path}/cache can't be written to")
    assert "JAX_COMPILATION_CACHE_DIR or KANAWA_CACHE" in found.fix


@pytest.fixture
def train(tmp_path):
    """Trains in a process of its own with one cache; returns (whether the step came from it, the losses, its words)."""
    cache = tmp_path / "cache"
    cached = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    with Nursery(cached) as nursery:

        def once(run):
            command = ["train", "tiny-lm", "--run", str(run), "--steps", str(STEPS)]
            process = nursery.start(command, run.with_suffix(".said"))
            assert process.wait() == 0, process.text()
            events = read_events(run / "events.jsonl")
            (program,) = [event for event in events if event["event"] == "program"]
            losses = [event["loss"] for event in events if event["event"] == "step"]
            return program["from_cache"], losses, process.text()

        once.entries = lambda: [file for file in pathlib.Path(cache).iterdir() if file.name.endswith(SUFFIX)]
        yield once


def test_a_warm_start_compiles_no_step_and_a_spoilt_entry_changes_nothing(train, tmp_path):
    was_kept, cold, _ = train(tmp_path / "cold")
    assert not was_kept
    was_kept, warm, _ = train(tmp_path / "warm")
    assert was_kept
    assert warm == cold
    for file in train.entries():
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    was_kept, spoilt, said = train(tmp_path / "spoilt")
    assert not was_kept
    assert spoilt == cold
    assert "is damaged: it is removed, and made anew" in said
    assert all(_is_sound(file) for file in train.entries())


def _is_sound(file):
    data = file.read_bytes()
    return sealed(file.name.removesuffix(SUFFIX), data[:-32]) == data[-32:]
