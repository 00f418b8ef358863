"""A stranger's names never stop the host: a warning says how to choose, and only the bare name is an error."""

import dataclasses
import logging

import pytest
from kanawa.composition.program_traits import program_traits
from kanawa.composition.target import parse_target
from kanawa.errors import PluginError, TargetError
from kanawa.plugins import ask_each, component, host
from kanawa.plugins.devices import device_spec_of_kind, device_specs, own_device

DEVICES = """
from kanawa.plugins import DeviceSpec, hookimpl

@hookimpl
def kanawa_device_specs():
    return [
        DeviceSpec(
            name=name, platform="loom", memory_bytes={memory}, memory_bandwidth=1, link_bandwidth=1,
            network_bandwidth=1, chips_per_host=8, device_kinds=(name + " kind",), source="here",
        )
        for name in ("shuttle", "cpu")
    ]
"""
THING = {"fake_thing": "import kanawa as kn\nclass Thing(kn.Configurable): ...\nclass Other(kn.Configurable): ..."}


def warnings(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


@pytest.fixture
def two_looms(fake_distribution):
    for name, memory in (("fake-a", 1), ("fake-b", 2)):
        module = name.replace("-", "_")
        fake_distribution(name, {"kanawa.plugins": [f"loom = {module}"]}, {module: DEVICES.format(memory=memory)})


def test_a_device_described_twice_stops_nobody_who_does_not_name_it(two_looms, caplog):
    assert parse_target("cpu-8").jax_devices == 8
    assert device_spec_of_kind("no such kind") is None
    lines = [line for line in warnings(caplog) if "'shuttle'" in line]
    assert lines == [
        "device 'shuttle' is described more than once: by fake-a and fake-b; write fake-a:shuttle, "
        "or leave one out: KANAWA_SKIP_PLUGINS=fake-b"
    ]


def test_a_device_described_twice_is_named_with_its_distribution(two_looms):
    with pytest.raises(TargetError, match="described more than once: by fake-a and fake-b; write fake-a:shuttle"):
        parse_target("shuttle-8")
    target = parse_target("fake-b:shuttle-8")
    assert (target.chips, target.device.memory_bytes) == (8, 2)
    assert "shuttle" not in device_specs()
    assert device_spec_of_kind("shuttle kind").memory_bytes == 1


def test_a_collision_is_one_line_with_both_names_and_the_way_to_choose(fake_distribution, caplog):
    fake_distribution("fake-a", {"kanawa.layers": ["x = fake_thing:Thing"]}, THING)
    fake_distribution("fake-b", {"kanawa.layers": ["x = fake_thing:Other"]})
    assert component("layers", "fake-b:x").__name__ == "Other"
    assert [line for line in warnings(caplog) if "fake-a" in line] == [
        "layers component 'x' is claimed more than once: fake-a:x (1.0, fake_thing:Thing), "
        "fake-b:x (1.0, fake_thing:Other); say which, as distribution:x, or leave one out: KANAWA_SKIP_PLUGINS=fake-b:x"
    ]


def test_a_packages_own_lookup_finds_its_own(fake_distribution):
    fake_distribution("fake-a", {"kanawa.layers": ["x = fake_thing:Thing"]}, THING)
    fake_distribution("fake-b", {"kanawa.layers": ["x = fake_thing:Other"]})
    assert component("layers", "x", asker="fake-b").__name__ == "Other"
    assert host().spelled("layers", "x", asker="fake-a") == "fake-a:x"
    for asker in ("", "fake-c"):
        with pytest.raises(PluginError, match="claimed more than once"):
            component("layers", "x", asker=asker)


def test_of_a_stranger_and_a_package_of_ours_a_third_one_means_ours(fake_distribution):
    fake_distribution("a-strangers", {"kanawa.layers": ["x = fake_thing:Thing"]}, THING)
    fake_distribution("kanawa-runtime", {"kanawa.layers": ["x = fake_thing:Other"]}, version="0.1.0")
    assert component("layers", "x", asker="fake-c").__name__ == "Other"
    with pytest.raises(PluginError, match="kanawa-runtime:x .*, a-strangers:x"):
        component("layers", "x")


def test_a_misspelt_group_is_no_kind(fake_distribution, caplog):
    groups = {"kanawa.layer": ["x = fake_thing:Thing"], "kanawa.looms": ["y = fake_thing:Thing"]}
    fake_distribution("fake-a", groups, THING)
    (state,) = [s for s in host().components() if s.name == "x"]
    assert state.state == "broken"
    assert state.reason == "nothing reads the entry-point group kanawa.layer; did you mean kanawa.layers?"
    assert any(state.reason in line for line in warnings(caplog))
    assert component("looms", "y").__name__ == "Thing"


def test_why_a_hook_does_not_fit_is_said(fake_distribution):
    source = """
    from kanawa.plugins import hookimpl
    @hookimpl
    def kanawa_config_checks(configuration):
        return []
    """
    fake_distribution("fake-a", {"kanawa.plugins": ["a = fake_a"]}, {"fake_a": source})
    (state,) = [s for s in host().plugins() if s.distribution == "fake-a"]
    assert "kanawa_config_checks" in state.reason
    assert "configuration" in state.reason.partition("kanawa_config_checks")[2]


def test_one_text_is_one_sentence(fake_distribution):
    source = """
    from kanawa.plugins import hookimpl
    @hookimpl
    def kanawa_config_checks(config):
        return "the loom is broken"
    """
    fake_distribution("fake-a", {"kanawa.plugins": ["a = fake_a"]}, {"fake_a": source})
    answers = dict(host().collect("kanawa_config_checks", config=None, target=None, model=None))
    assert answers["fake-a:a"] == ["the loom is broken"]


TRAITS = """
from kanawa.plugins import ProgramTraits, hookimpl

@hookimpl
def kanawa_program_traits(device):
    return ProgramTraits(unrolled_layers={layers})
"""


def test_backends_that_contradict_each_other_stop_nobody(fake_distribution, caplog):
    for name, layers in (("fake-a", 7), ("fake-b", 8)):
        module = name.replace("-", "_")
        fake_distribution(name, {"kanawa.plugins": [f"{name} = {module}"]}, {module: TRAITS.format(layers=layers)})
    device = dataclasses.replace(own_device(), platform="loom")
    for _ in range(2):
        assert program_traits(device, "train", 0, 1).unrolled_layers == 7
    assert [line for line in warnings(caplog) if "contradict" in line] == [
        "fake-a:fake-a and fake-b:fake-b contradict each other about programs for cpu: the first is believed; "
        "KANAWA_SKIP_PLUGINS=fake-b:fake-b leaves the other out"
    ]


def test_many_names_of_two_distributions_are_one_line(fake_distribution, caplog):
    names = [f"x{number} = fake_thing:Thing" for number in range(7)]
    for name in ("fake-a", "fake-b"):
        fake_distribution(name, {"kanawa.layers": names}, THING)
    host().components()
    (line,) = [line for line in warnings(caplog) if "claimed" in line]
    assert line.startswith("7 names are claimed by fake-a and by fake-b: layers component 'x0', ")
    assert line.endswith("leave one out: KANAWA_SKIP_PLUGINS=fake-a")


ASKED = {
    "fake_asked": """
from kanawa.contracts import ExperimentTemplate

class Good(ExperimentTemplate):
    def refusal(self, model): ...
    def with_data(self, *anything): ...
    def answer(self): return "here"
    def experiment(self, model, platform, devices): ...
    def from_folder(self, folder, platform, devices): ...

class Bad(Good):
    def answer(self): raise KeyError("width")
"""
}


def test_a_component_that_raises_where_all_are_asked_stops_nobody(fake_distribution, caplog):
    fake_distribution("fake-a", {"kanawa.templates": ["bad = fake_asked:Bad", "good = fake_asked:Good"]}, ASKED)

    def question(template):
        return template.answer() if hasattr(template, "answer") else ""

    answers = {state.name: answer for state, _, answer in ask_each("templates", question)}
    assert answers["good"] == "here" and "bad" not in answers
    (line,) = [line for line in warnings(caplog) if "'bad'" in line]
    assert "KeyError: 'width'" in line and "KANAWA_SKIP_PLUGINS=fake-a leaves it out" in line
