"""A report of records whose fields are not what they should be: whatever can't be told is left out."""

import copy
import json
import os

import pytest
from kanawa.guarded_read import UnreadableFileError
from kanawa_runtime.checkpoint.layout import recorded_commits
from kanawa_runtime.goodput.time_log import read_time_records
from kanawa_runtime.launch.grace import measured_grace
from kanawa_runtime.report import run_figures, write_report
from kanawa_runtime.report.run_data import load_run
from kanawa_runtime.runs.events import EventLog, read_events
from kanawa_runtime.storage.place import stands_for

WRONG = ["text", "", -1, 1.5, True, [], [[1]], ["a"], {}, {"a": None}, {"a": {"b": []}}, 10**400, float("nan"), 1e300]
GIT = {"commit": "0123456789abcdef", "branch": "topic", "dirty": True}
RECORDS = [
    {"event": "run_started", "total_steps": 4, "command": "kanawa train x", "git": GIT, "cores": 4, "processor": "A",
     "plugins": {"kanawa": "0.1"}, "versions": {"jax": "1"}, "working_directory": "/a", "devices": "1 x cpu",
     "config_changes": [{"path": "execution.mesh", "old": "a", "new": "b"}]},
    {"event": "kernel_selected", "operation": "attention", "problem": "q8", "kernel": "k",
     "refused": [{"kernel": "j", "reason": "no GPU"}]},
    {"event": "program", "parameters": 10, "trained_parameters": 5, "parameters_by_module": {"a": 10}, "chips": 1,
     "model_flops_per_step": 6e9, "memory_per_device_bytes": {"state": 3}, "device_kind": "cpu",
     "peak_flops_per_chip": 1e10, "peak_flops_dtype": "float32", "peak_flops_source": "sheet",
     "memory_limit_bytes": 100},
    {"event": "data", "records": 9, "skipped": 2, "cut": 1, "reasons": ["a.jsonl:1: no"], "web": {"documents": 3}},
    {"event": "prepared", "step": 0, "origin": "new", "seconds": 1.0},
    {"event": "step", "step": 1, "loss": 2.0, "tokens": 64.0, "seconds": 0.1, "metrics": {"gradient_norm": 1.0}},
    {"event": "step", "step": 2, "loss": "nan", "tokens": 64.0, "seconds": 0.1, "metrics": {"gradient_norm": 1.0}},
    {"event": "eval", "step": 2, "loss": 1.9, "tokens": 100.0, "nats_per_byte": 0.5, "trigram_nats_per_byte": 0.6,
     "final": True},
    {"event": "sample", "step": 2, "prompt": "a", "text": "b"},
    {"event": "sample", "step": 2, "error": "none"},
    {"event": "memory", "step": 2, "device_peak_bytes": 5, "process_peak_bytes": 6},
    {"event": "checkpoint_committed", "step": 2, "path": "x", "bytes": 5, "seconds": 0.1, "blocking_seconds": 0.1},
    {"event": "checkpoint_failed", "step": 2, "path": "x", "error": "full"},
    {"event": "checkpoint_damaged", "step": 2, "reasons": ["a"], "used": 1},
    {"event": "run_ended", "outcome": "done", "step": 2, "signal": None},
]  # fmt: skip


def written(path, records):
    path.mkdir(exist_ok=True)
    lines = [json.dumps({"attempt": 1, "clock": float(n), "time": 1e9 + n} | r) for n, r in enumerate(records)]
    (path / "events.jsonl").write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("index", range(len(RECORDS)), ids=lambda i: f"{i}-{RECORDS[i]['event']}")
def test_any_field_may_be_anything(index, tmp_path):
    for field in [*RECORDS[index], "attempt", "clock", "time"]:
        for wrong in WRONG:
            records = copy.deepcopy(RECORDS)
            records[index][field] = wrong
            run = written(tmp_path / "run", records)
            try:
                write_report([run], tmp_path / "report.html")
                json.dumps(run_figures([run]))
            except Exception as error:
                pytest.fail(f"{RECORDS[index]['event']}.{field} = {str(wrong)[:20]!r}: {error!r}")


def test_lines_that_are_no_records_are_passed_over(tmp_path):
    path = tmp_path / "events.jsonl"
    lines = ["[" * 100_000, "{}", '{"event": 5}', '{"event": ["step"]}', "7", "null", '{"event": "step"}', ""]
    path.write_text("\n".join(lines))
    assert read_events(path) == [{"event": "step"}]


@pytest.mark.parametrize("text", ["[]", "5", '{"plugins": 5, "versions": []}', "[" * 100_000, "\x00"])
def test_a_record_of_plugins_that_is_something_else(text, tmp_path):
    run = written(tmp_path / "run", RECORDS[1:])
    (run / "plugins.json").write_text(text)
    write_report([run], tmp_path / "report.html")
    run_figures([run])


# --- files that aren't files ------------------------------------------------------------------------------------------


def _pipe(path):
    os.mkfifo(path)


def _device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [_pipe, _device])
@pytest.mark.parametrize("name", ["events.jsonl", "plugins.json", "config.json", "alive.json", ".address"])
def test_a_pipe_or_a_device_in_a_run_is_not_waited_for(tmp_path, make, name):
    (tmp_path / "events.jsonl").write_text('{"event": "step", "step": 1, "loss": 2.0}\n')
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    if name == "events.jsonl":
        for read in (load_run, read_time_records, recorded_commits, lambda run: EventLog(run / name)):
            with pytest.raises(UnreadableFileError, match="expected an ordinary file"):
                read(tmp_path)
    else:
        assert load_run(tmp_path).steps[1]["loss"] == 2.0
        assert measured_grace(str(tmp_path))
        assert stands_for(tmp_path) is None
