"""The time a job gets to end is measured from the saves of its own run."""

import json

from kanawa_runtime.launch import grace
from kanawa_runtime.launch.grace import LEAST_SECONDS, UNMEASURED_SECONDS, grace_of, measured_grace
from kanawa_runtime.storage import mirror


def saves(*seconds):
    return [{"event": "checkpoint_committed", "seconds": s, "blocking_seconds": 0.1} for s in seconds]


def test_a_slow_save_in_a_hundred_decides():
    quick, slow = saves(*[20.0] * 199), saves(200.0)
    assert grace_of(quick) == 35
    # One of 200 is beyond the 99th percentile, three aren't.
    assert grace_of(quick + slow) == 35
    assert grace_of(quick + slow * 3) == 215


def test_steps_that_must_end_first_count():
    steps = [{"event": "step", "seconds": 40.0}] * 5
    assert grace_of(steps + saves(30.0)) == 30 + 2 * 40 + 15


def test_never_less_than_an_interpreter_needs_to_leave():
    assert grace_of(saves(0.01)) == LEAST_SECONDS


def test_without_a_save_it_is_said(tmp_path):
    for run in ("", str(tmp_path / "none")):
        assert measured_grace(run) == UNMEASURED_SECONDS


def test_the_events_of_a_run_at_an_address_are_read_there(tmp_path, monkeypatch, capsys):
    (tmp_path / "events.jsonl").write_text("\n".join(json.dumps(save) for save in saves(60.0)))
    monkeypatch.setattr(mirror, "readable_folder", {"s3://bucket/run": tmp_path}.get)
    # In a process of its own.
    assert grace.main("s3://bucket/run") == 0
    assert json.loads(capsys.readouterr().out) == 75
    assert measured_grace("s3://bucket/run", asks=False) == UNMEASURED_SECONDS


def test_an_address_that_can_t_be_read_costs_no_launch():
    assert measured_grace("nowhere://bucket/run") == UNMEASURED_SECONDS


def test_a_torn_or_strange_log_is_read_as_far_as_it_goes(tmp_path):
    lines = [json.dumps(save) for save in saves(60.0)]
    lines += ['{"event": "checkpoint_committed", "seconds": "nan"}', '["checkpoint_committed"]']
    lines += ['{"event": "step", "sec']
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert measured_grace(str(tmp_path)) == 75
