"""A plan in another process: what that is busy with is what this one waits for, and its failure is a record."""

import io
import sys

import pytest
from kanawa.status import stage, stage_lines
from kanawa_parallel.plan.programs.request import PlanRequest


@pytest.fixture
def planner(tmp_path, monkeypatch):
    """Returns a function that has a shell script plan in place of Python."""

    def write(text):
        script = tmp_path / "planner"
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    return write


def test_a_wait_for_another_process_says_what_that_is_busy_with(planner):
    planner("sleep 0.5; echo '60 s: compiling for a pod' >&2; echo a warning >&2; sleep 0.5; echo '{\"fits\": true}'")
    stream = io.StringIO()
    with stage_lines(stream, after_seconds=0.0), stage("compiling"):
        assert PlanRequest("job").planned_apart("box-2") == {"fits": True}
    told = [line.partition(": ")[2] for line in stream.getvalue().splitlines()]
    assert told[0] == "compiling"
    assert any(line.startswith("process ") and line.endswith("which says: 60 s: compiling for a pod") for line in told)
    assert not any("a warning" in line for line in told)


def test_a_process_that_fails_is_a_record_with_the_end_of_its_errors(planner):
    planner("yes 'a line' | head -2000 >&2; echo the reason >&2; exit 2")
    plan = PlanRequest("job").planned_apart("box-2")
    assert plan["error"].startswith("planning job failed (exit code 2): ")
    assert plan["error"].endswith("the reason") and len(plan["error"]) < 4100
