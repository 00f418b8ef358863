"""The tuning table: what is written is read, what is stale or of another device isn't used, what is broken is named."""

import json
import subprocess
import sys

import pytest
from kanawa.kernels.tuning_table import (
    Entry,
    TuningTableError,
    default_path,
    device_key,
    measured_uses,
    read_table,
)
from kanawa_kernel_tools.measuring.bench import add_entries


def entry(problem="train 8x256", kernel="attention.cpu.blockwise", *, device=None, **changes):
    values = {
        "device": device_key("cpu") if device is None else device,
        "operation": "attention",
        "problem": problem,
        "kernel": kernel,
        "tuning": (("block", 64),),
        "versions": {},
        "measured": ({"kernel": kernel, "seconds": 0.5},),
        "date": "2026-01-01",
    }
    return Entry(**{**values, **changes})


def test_entries_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "new" / "table.json"
    add_entries(path, [entry(), entry("eval 8x256")])
    assert read_table(path) == (entry(), entry("eval 8x256"))
    assert measured_uses(path, "cpu")[0] == ("attention", "train 8x256", "attention.cpu.blockwise", (("block", 64),))


def test_a_new_measurement_replaces_the_old_one_of_its_problem_and_device(tmp_path):
    path = tmp_path / "table.json"
    add_entries(path, [entry(), entry(device="TPU v5")])
    add_entries(path, [entry(kernel="attention.any.reference")])
    assert [(one.device, one.kernel) for one in read_table(path)] == [
        (device_key("cpu"), "attention.any.reference"),
        ("TPU v5", "attention.cpu.blockwise"),
    ]
    assert [use[2] for use in measured_uses(path, "TPU v5")] == ["attention.cpu.blockwise"]


def test_what_was_measured_with_other_versions_is_not_used(tmp_path):
    path = tmp_path / "table.json"
    add_entries(path, [entry(versions={"jax": "0.0.1"}), entry("eval", versions={"no-such-distribution": "1"})])
    assert len(read_table(path)) == 2
    assert measured_uses(path, "cpu") == ()


def test_processes_that_measure_at_once_lose_nothing(tmp_path):
    """Each process reads, adds and replaces: without a lock, one that read before another replaced drops its entry."""
    path = tmp_path / "table.json"
    program = (
        "import sys; from pathlib import Path; from kanawa.kernels.tuning_table import Entry\n"
        "from kanawa_kernel_tools.measuring.bench import add_entries\n"
        "table, name = Path(sys.argv[1]), sys.argv[2]\n"
        "for i in range(20): add_entries(table, [Entry('d', 'attention', f'{name} {i}', 'k', (), {})])"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, str(path), name]) for name in "abc"]
    assert [one.wait(60) for one in running] == [0, 0, 0]
    assert {one.problem for one in read_table(path)} == {f"{name} {i}" for name in "abc" for i in range(20)}


def test_others_may_read_a_table_and_what_cant_be_written_is_told(tmp_path):
    path = tmp_path / "table.json"
    plain = tmp_path / "plain"
    plain.write_text("")
    add_entries(path, [entry()])
    assert path.stat().st_mode == plain.stat().st_mode
    assert {each.name for each in tmp_path.iterdir()} == {"plain", "table.json"}
    with pytest.raises(TuningTableError, match=r"plain/table.json can't be written \(.*\); give another with --table"):
        add_entries(plain / "table.json", [entry()])


def test_without_a_file_there_are_no_entries(tmp_path):
    assert read_table(tmp_path / "none.json") == ()


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"format": 2, "entries": []}',
        '{"format": 1, "entries": [{}]}',
        '{"format": 1, "entries": 3}',
        json.dumps({"format": 1, "entries": [{**entry().as_json(), "kernel": 7}]}),
        json.dumps({"format": 1, "entries": [{**entry().as_json(), "tuning": {"block": "wide"}}]}),
        json.dumps({"format": 1, "entries": [{**entry().as_json(), "tuning": {"tile": 0}}]}),
        json.dumps({"format": 1, "entries": [{**entry().as_json(), "tuning": {"tile": 128.5}}]}),
        json.dumps({"format": 1, "entries": [{**entry().as_json(), "tuning": {"tile": True}}]}),
    ],
)
def test_a_broken_table_is_named_with_what_to_do(tmp_path, content):
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(TuningTableError, match="isn't a tuning table.*delete it, and measure again") as caught:
        read_table(path)
    assert str(path) in str(caught.value)


def test_the_users_own_table_can_be_put_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("KANAWA_TUNING", raising=False)
    assert default_path() == tmp_path / "kanawa" / "tuning.json"
    monkeypatch.setenv("KANAWA_TUNING", str(tmp_path / "mine.json"))
    assert default_path() == tmp_path / "mine.json"


def test_a_processor_is_told_from_another_by_its_model():
    assert device_key("cpu").startswith("cpu, ")
    assert device_key("NVIDIA H100") == "NVIDIA H100"
