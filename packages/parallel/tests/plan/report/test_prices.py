"""Prices: both formats, what is wrong with a table, and the arithmetic."""

import dataclasses

import pytest
from kanawa.errors import UsageError
from kanawa_parallel.plan.programs.request import PlanRequest
from kanawa_parallel.plan.quick.estimate import quick_report
from kanawa_parallel.plan.report.prices import Prices, prices_for, read_prices


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.toml", 'currency = "EUR"\nh100 = 2.5\nV5P = 4'),
        ("p.toml", 'currency = "EUR"\n[prices]\nh100 = 2.5\nv5p = 4'),
        ("p.json", '{"currency": "EUR", "prices": {"h100": 2.5, "v5p": 4}}'),
    ],
)
def test_formats(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    assert read_prices(path) == Prices({"h100": 2.5, "v5p": 4.0}, "EUR")


WRONG = [
    "h100 = 'much'",
    "h100 = -1",
    "h100 = nan",
    "h100 = inf",
    "h100 = true",
    "h100 = 1e30",
    "[[rows]]\na = 1",
    "h100",
]


@pytest.mark.parametrize("text", ["", *WRONG])
def test_what_is_no_table(tmp_path, text):
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match="expected device names to prices|can't|isn't a table"):
        read_prices(path)


def test_a_missing_device_names_near_ones(tmp_path, job):
    path = tmp_path / "p.toml"
    path.write_text("bx = 1")
    with pytest.raises(UsageError, match="no price for 'box'; did you mean 'bx'"):
        prices_for(path, PlanRequest("plan-job").composed(["box-2"]))


def test_a_thousand_chips_for_an_hour(job):
    """1000 chips at 2 an hour cost 2000; at a million tokens a second that is 3600 million tokens."""
    (composition,) = PlanRequest("plan-job").composed(["box-2"])
    report = dataclasses.replace(
        quick_report(composition, "train_step"), chips=1000, tokens_per_step=1_000_000, step_seconds_by={"compute": 1.0}
    )
    assert Prices({"box": 2.0}).priced(report, "box").cost_per_million_tokens == pytest.approx(2000 / 3600)
    stuck = dataclasses.replace(report, step_seconds_by={})
    assert Prices({"box": 2.0}).priced(stuck, "box").cost_per_million_tokens is None
