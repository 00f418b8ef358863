"""Whatever is set at any path of any experiment: the config composes, or an error of ours says why not."""

import functools

import kanawa as kn
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kanawa.errors import UsageError
from kanawa.plugins import host
from wild_values import TEXTS

EXPERIMENTS = sorted(state.name for state in host().components("experiments"))


@functools.cache
def paths(name: str) -> list[str]:
    lines = kn.to_text(kn.compose(name).config).splitlines()
    return [path for path in (line.partition(": ")[0] for line in lines) if path != "."]


def composes_or_says_why(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(EXPERIMENTS))
    chosen = data.draw(st.lists(st.sampled_from(paths(name)), min_size=1, max_size=2))
    overrides = [f"{path}={data.draw(TEXTS)}" for path in chosen]
    try:
        kn.compose(name, overrides=overrides)
    except UsageError as error:
        assert error.exit_code == 2
        assert str(error)
    broken = [state.key for state in host().plugins() if state.state == "broken"]
    assert not broken, f"{broken} failed at {overrides}"


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_value_at_any_path(data):
    composes_or_says_why(data)


@pytest.mark.nightly
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_value_at_any_path_for_long(data):
    composes_or_says_why(data)
