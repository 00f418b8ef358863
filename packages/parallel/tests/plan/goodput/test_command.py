"""`plan --goodput`: a planned step's month, one that needs no plan, and what it is refused with."""

import argparse
import json

import pytest
from kanawa.errors import UsageError
from kanawa_parallel.plan import command as verb


def run(*words):
    parser = argparse.ArgumentParser()
    verb.configure(parser)
    return verb.run(parser.parse_args(words))


def test_a_planned_steps_month_as_json(job, capsys):
    assert run("plan-job", "--on", "box-2", "--quick", "--goodput", "--json", "--assume", "days=2") == 0
    month = json.loads(capsys.readouterr().out)
    assert (month["experiment"], month["target"]) == ("plan-job", "box-2")
    assert month["origins"]["step_seconds"] == "planned"
    assert sum(month["shares"].values()) == pytest.approx(1.0)
    assert sum(month["seconds"].values()) == pytest.approx(2 * 86400)
    assert month["suggestions"]["goodput"] >= month["goodput"] - 1e-6
    assert month["suggestions"]["intervals"][0].keys() == {"tier", "asked", "best", "young", "daly"}


def test_a_step_that_is_given_or_measured_needs_no_plan(job, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(verb, "_planned", None)
    words = ("plan-job", "--on", "box-2", "--goodput", "--assume", "mtbf_hours=100", "--assume", "days=3")
    assert run(*words, "--assume", "step_seconds=1.5") == 0
    told = capsys.readouterr().out
    assert "plan-job on box-2: 3 days on 1 host, simulated" in told
    assert "step_seconds                    1.5  given" in told
    assert "Young says" in told and "hosts standing by" in told
    measured = tmp_path / "report.json"
    measured.write_text(json.dumps({"runs": [{"times": {"step_seconds": 0.5, "restore_seconds": 3.0}}]}))
    assert run(*words, "--measured", str(measured)) == 0
    told = capsys.readouterr().out
    assert "step_seconds                    0.5  measured" in told
    assert "read in 3 s" in told


REFUSED = {
    "--assume: only the simulation of a month takes this; add --goodput": ("--assume", "spares=3"),
    "--goodput with --search": ("--goodput", "--search"),
    "there is no 'spare'; did you mean 'spares'?": ("--goodput", "--assume", "step_seconds=1", "--assume", "spare=3"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_makes_no_sense_is_refused_before_anything_is_planned(job, text):
    with pytest.raises(UsageError) as caught:
        run("plan-job", "--on", "box-2", *REFUSED[text])
    assert text in str(caught.value)
