"""Components: never imported before they are named, and clear errors when they can't be had."""

import sys

import pytest
from kanawa.errors import PluginError, UnknownNameError
from kanawa.plugins import component, host

THING = {"fake_thing": "import kanawa as kn\nclass Thing(kn.Configurable): ...\nclass Other(kn.Configurable): ..."}


def test_component_is_imported_when_named_and_not_before(fake_distribution):
    fake_distribution("fake-d", {"kanawa.layers": ["a.b.thing = fake_thing:Thing"]}, THING)
    (listed,) = [c for c in host().components("layers") if c.name == "a.b.thing"]
    assert (listed.state, listed.distribution, listed.version) == ("available", "fake-d", "1.0")
    assert "fake_thing" not in sys.modules
    thing = component("layers", "a.b.thing")
    assert thing is sys.modules["fake_thing"].Thing
    assert component("layers", "fake-d:a.b.thing") is thing
    (listed,) = [c for c in host().components("layers") if c.name == "a.b.thing"]
    assert listed.state == "loaded"
    assert host().name_of(thing) == "a.b.thing"
    assert host().name_of(sys.modules["fake_thing"].Other) is None


def test_unknown_name_says_what_is_near_installed_and_missing(fake_distribution):
    fake_distribution("fake-d", {"kanawa.widgets": ["gadget = fake_thing:Thing"]}, version="4.2")
    with pytest.raises(UnknownNameError) as error:
        component("widgets", "gadgett")
    message = str(error.value)
    assert "no installed distribution provides 'gadgett' of kind 'widgets'" in message
    assert "did you mean 'gadget'?" in message
    assert "fake-d 4.2" in message
    with pytest.raises(UnknownNameError, match="there is a 'gadget' of kind widgets"):
        component("layers", "gadget")
    with pytest.raises(UnknownNameError, match="did you mean 'widgets'"):
        component("widget", "gadget")


def test_installation_hint_names_a_missing_first_party_package(fake_distribution):
    from kanawa.plugins.catalog import Catalog

    with pytest.raises(UnknownNameError) as error:
        Catalog([], {"kanawa-parallel": "0.1.0"}).load("layers", "moe")
    missing = "kanawa-backends-cpu, kanawa-layers, kanawa-runtime"
    assert f'not installed: {missing} (pip install "kanawa[train]")' in str(error.value)
    assert 'not installed: kanawa-backends-tpu (pip install "kanawa[tpu]")' in str(error.value)
    assert "serve" not in str(error.value), "its package is told of already"


def test_two_claims_are_an_error_until_one_is_named(fake_distribution):
    fake_distribution("fake-a", {"kanawa.layers": ["x = fake_thing:Thing"]}, THING)
    fake_distribution("fake-b", {"kanawa.layers": ["x = fake_thing:Other"]})
    with pytest.raises(PluginError) as error:
        component("layers", "x")
    assert "fake-a:x (1.0, fake_thing:Thing), fake-b:x (1.0, fake_thing:Other)" in str(error.value)
    assert "distribution:x" in str(error.value)
    assert error.value.exit_code == 2, "the command line said too little"
    assert component("layers", "fake-b:x").__name__ == "Other"
    assert {c.state for c in host().components("layers") if c.name == "x"} == {"conflict"}
    assert host().name_of(component("layers", "fake-a:x")) == "fake-a:x"


def test_one_distribution_that_claims_a_name_twice_is_in_conflict_with_itself(fake_distribution):
    lines = ["x = fake_thing:Thing", "x = fake_thing:Other"]
    fake_distribution("fake-a", {"kanawa.layers": lines}, THING)
    with pytest.raises(PluginError, match="claimed more than once"):
        component("layers", "fake-a:x")


def test_hook_components_conflict_with_listed_ones_too(fake_distribution):
    source = """
    from kanawa.plugins import Component, hookimpl
    @hookimpl
    def kanawa_components():
        return [Component("layers", n, "fake_thing:Thing") for n in ("x", "y")]
    """
    entry_points = {"kanawa.plugins": ["dyn = fake_dyn"]}
    fake_distribution("fake-dyn", entry_points, {"fake_dyn": source, **THING})
    fake_distribution("fake-a", {"kanawa.layers": ["x = fake_thing:Other"]})
    assert component("layers", "y").__name__ == "Thing"
    with pytest.raises(PluginError, match="fake-a:x .*, fake-dyn:x"):
        component("layers", "x")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("fake_thing:Thingy", "has no attribute 'Thingy'"),
        ("fake_nowhere:Thing", "No module named 'fake_nowhere'"),
        ("fake_thing", "is not module:object"),
    ],
)
def test_component_that_cannot_be_imported_is_broken(fake_distribution, value, reason):
    fake_distribution("fake-a", {"kanawa.layers": [f"x = {value}"]}, THING)
    for _ in range(2):
        with pytest.raises(PluginError, match=r"layers component 'x' of fake-a 1.0 is broken") as e:
            component("layers", "x")
        assert reason in str(e.value)
    (state,) = [c for c in host().components("layers") if c.name == "x"]
    assert state.state == "broken"


def test_what_does_not_play_its_kinds_role_is_broken_and_the_others_are_loaded(fake_distribution, caplog):
    entries = {"kanawa.layers": ["good = fake_thing:Thing", "bad = fake_thing:kn"]}
    fake_distribution("fake-a", entries, THING)
    for _ in range(2):
        assert [state.name for state, _ in host().loaded("layers") if state.distribution == "fake-a"] == ["good"]
    (line,) = [record.message for record in caplog.records if "fake-a" in record.message]
    assert "layers component 'bad' of fake-a 1.0 is broken: it is <module 'kanawa'" in line
    assert "expected a subclass of Configurable; KANAWA_SKIP_PLUGINS=fake-a:bad leaves it out" in line
    with pytest.raises(PluginError, match="expected a subclass of Configurable"):
        component("layers", "bad")
