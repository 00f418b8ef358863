"""A modifier that replaces what an earlier one set is reported, with both names; one that builds on it is not."""

import logging

import kanawa as kn
import pytest
from kanawa.composition.experiment import compose


class Gate(kn.Configurable):
    class Config(kn.Configurable.Config):
        width: int = 4


class Wrapped(Gate):
    class Config(Gate.Config):
        inner: Gate.Config = Gate.Config()


class Layer(kn.Config):
    gate: Gate.Config | None = None
    rate: float = 0.0


class Job(kn.Config):
    layers: list[Layer] = [Layer(), Layer(), Layer(), Layer()]
    steps: int = 1
    tags: tuple[str, ...] = ()


class Gated(kn.Modifier):
    """Puts a gate in every layer."""

    class Config(kn.Modifier.Config):
        width: int = 8

    def __call__(self, cfg):
        for layer in cfg.layers:
            layer.set(gate=Gate.Config(width=self.config.width))
        return cfg


class Ungated(kn.Modifier):
    """Takes the gates out again, without a word."""

    def __call__(self, cfg):
        for layer in cfg.layers:
            layer.set(gate=None)
        return cfg


class Around(kn.Modifier):
    """Wraps every gate, which stays."""

    def __call__(self, cfg):
        kn.replace(cfg, target=Gate, edit=lambda old: Wrapped.Config(inner=old), where="layers[*].gate")
        return cfg


class Fresh(kn.Modifier):
    """Returns another config, into which nothing is carried."""

    def __call__(self, cfg):
        return Job(steps=cfg.steps)


class Rate(kn.Modifier):
    class Config(kn.Modifier.Config):
        to: float = 0.5

    def __call__(self, cfg):
        for layer in cfg.layers:
            layer.set(rate=self.config.to)
        return cfg


class Tag(kn.Modifier):
    """Adds a tag at the end, as modifiers do that are repeated."""

    class Config(kn.Modifier.Config):
        name: str = "a"

    def __call__(self, cfg):
        return cfg.set(tags=(*cfg.tags, self.config.name))


class First(kn.Modifier):
    """Adds a tag before the others, as `pipeline` does with its strategy."""

    def __call__(self, cfg):
        return cfg.set(tags=("first", *cfg.tags))


@pytest.fixture
def warnings_of(fake_distribution, caplog):
    kinds = {
        "gated": Gated,
        "ungated": Ungated,
        "around": Around,
        "fresh": Fresh,
        "rate": Rate,
        "tag": Tag,
        "first": First,
    }
    groups = [f"{name} = {cls.__module__}:{cls.__name__}" for name, cls in kinds.items()]
    fake_distribution("fake-gates", {"kanawa.modifiers": groups})

    def run(*modifiers):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="kanawa.composition.experiment"):
            compose(Job(), modifiers=modifiers)
        return [r.getMessage() for r in caplog.records if r.name == "kanawa.composition.experiment"]

    return run


def test_both_are_named_with_what_was_and_what_is(warnings_of):
    (line,) = warnings_of("gated", "ungated")
    assert line == (
        "modifier 'ungated' replaces what modifier 'gated' set: layers[0].gate (Gate.Config is now None), "
        "layers[1].gate (Gate.Config is now None), layers[2].gate (Gate.Config is now None) and 1 more; "
        "the last one wins"
    )


def test_a_single_value_is_told_too(warnings_of):
    (line,) = warnings_of("rate:to=0.25", "gated", "rate:to=0.75")
    assert "modifier 'rate' replaces what modifier 'rate' set: layers[0].rate (0.25 is now 0.75)" in line


def test_a_new_config_loses_everything(warnings_of):
    gated, rate = sorted(warnings_of("gated", "rate", "fresh"))
    assert "modifier 'fresh' replaces what modifier 'gated' set: layers[0].gate (Gate.Config is now None)" in gated
    assert "modifier 'fresh' replaces what modifier 'rate' set: layers[0].rate (0.5 is now 0.0)" in rate


@pytest.mark.parametrize(
    "modifiers",
    [
        ("gated",),
        ("gated", "rate"),
        ("gated", "around"),
        ("rate", "rate"),
        ("fresh",),
        ("tag", "tag:name=b"),
        ("tag", "first"),
    ],
)
def test_what_builds_on_another_is_silent(warnings_of, modifiers):
    assert warnings_of(*modifiers) == []
