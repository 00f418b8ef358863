"""Where a simulation's numbers come from, and how what can't be is refused."""

import json

import pytest
from kanawa.errors import UsageError
from kanawa_parallel.plan.goodput.assume import Planned, assume_scenario, read_measured
from kanawa_parallel.plan.goodput.scenario import Tier

PLANNED = Planned(hosts=4, chips=32, step_seconds=2.0, parameters=8_000_000_000, every_steps=100)


def test_given_wins_over_measured_over_planned_over_assumed():
    measured = {"step_seconds": 2.5, "start_seconds": 7.0, "blocking_seconds": 0.5, "write_seconds": 9.0}
    assumed = assume_scenario(PLANNED, ["start_seconds=3", "spares=2"], measured)
    s = assumed.scenario
    assert (s.hosts, s.step_seconds, s.start_seconds, s.spares) == (4, 2.5, 3.0, 2)
    assert s.tiers == (Tier("store", 100, 0.5, 9.0, 24.0),)
    names = ("hosts", "step_seconds", "start_seconds", "tiers", "repair_hours")
    assert [assumed.origins[name] for name in names] == ["planned", "measured", "given", "measured", "assumed"]
    # Eight chips a host, at the rate at which Llama 3's 16,384 failed.
    assert s.mtbf_hours == pytest.approx(54 * 24 * 16384 / 419 / 8)


def test_tiers_are_given_in_one_text_each():
    texts = [
        "tier=local:every=10,blocking=0.5,write=1,restore=2,survives=process",
        "tier=s3:every=100,blocking=1,write=60,restore=50",
    ]
    tiers = assume_scenario(PLANNED, texts).scenario.tiers
    assert tiers == (Tier("local", 10, 0.5, 1.0, 2.0, "process"), Tier("s3", 100, 1.0, 60.0, 50.0, "all"))


REFUSED = {
    "there is no 'mtbf_hour'; did you mean 'mtbf_hours'?": ["mtbf_hour=3"],
    "spares=1.5: expected a whole number": ["spares=1.5"],
    "mtbf_hours=0.0: expected above 0, finite": ["mtbf_hours=0"],
    "mtbf_hours=many: expected a number": ["mtbf_hours=many"],
    "host_share=1.5: expected at least 0, at most 1": ["host_share=1.5"],
    "hosts=0: expected at least 1": ["hosts=0"],
    "write, restore missing; expected tier=NAME:every=STEPS,": ["tier=s3:every=3,blocking=1"],
    "there is no 'evry'; did you mean 'every'?": ["tier=s3:evry=3"],
    "survives=hosts; did you mean 'host'?": ["tier=s3:every=3,blocking=1,write=1,restore=1,survives=hosts"],
    "no tier survives everything": ["tier=ram:every=3,blocking=1,write=1,restore=1,survives=process"],
    "two tiers of one name": ["tier=a:every=3,blocking=1,write=1,restore=1"] * 2,
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cant_be_is_refused_by_name_value_and_rule(text):
    with pytest.raises(UsageError) as caught:
        assume_scenario(PLANNED, REFUSED[text])
    assert text in str(caught.value)


def test_without_a_steps_time_there_is_nothing_to_simulate():
    with pytest.raises(UsageError, match="needs a step's time: .*--assume step_seconds=2.5"):
        assume_scenario(Planned(hosts=1, chips=1), [])


def test_a_report_without_times_is_refused(tmp_path):
    path = tmp_path / "report.json"
    for content in ("", "[]", '{"runs": []}', '{"runs": [{}]}'):
        path.write_text(content)
        with pytest.raises(UsageError, match="expected what `kanawa report RUN --json` prints"):
            read_measured(path)
    path.write_text(json.dumps({"runs": [{"times": {"step_seconds": 1.0}}]}))
    assert read_measured(path) == {"step_seconds": 1.0}
