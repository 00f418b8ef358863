"""Prices: both formats, what is wrong with a table, and the arithmetic."""

import pytest
from kanawa.errors import UsageError
from kanawa_parallel.plan.cost.prices import cost_per_million_tokens, price_of, read_prices


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
    assert read_prices(path) == ({"h100": 2.5, "v5p": 4.0}, "EUR")


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


def test_a_missing_device_names_near_ones(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'h100'"):
        price_of({"h100": 1.0}, "h10", tmp_path)


def test_a_thousand_chips_for_an_hour():
    """1000 chips at 2 an hour cost 2000; at a million tokens a second that is 3600 million tokens."""
    assert cost_per_million_tokens(2.0, 1000, 1.0, 1_000_000) == pytest.approx(2000 / 3600)
