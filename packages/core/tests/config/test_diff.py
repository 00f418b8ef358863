"""Differences: values, classes, and paths on one side only."""

from typing import Any

from kanawa.config import ABSENT, Config, Configurable, diff


class Norm(Configurable):
    class Config(Configurable.Config):
        eps: float = 1e-6


class GroupNorm(Norm):
    class Config(Norm.Config):
        groups: int = 1


class Model(Config):
    norm: Norm.Config = Norm.Config()
    layers: list[Norm.Config] = [Norm.Config()]
    value: Any = 1


def test_nothing_changes_between_equals() -> None:
    assert diff(Model(), Model().freeze()) == []


def test_changes() -> None:
    new = Model(norm=GroupNorm.Config(eps=1), value=1.0)
    new.layers = [*new.layers, Norm.Config()]
    changes = diff(Model(), new)
    assert [str(c) for c in changes] == [
        f"layers[1]: ABSENT -> {__name__}:Norm",
        "layers[1].eps: ABSENT -> 1e-06",
        f"norm: {__name__}:Norm -> {__name__}:GroupNorm",
        "norm.eps: 1e-06 -> 1.0",
        "norm.groups: ABSENT -> 1",
        "value: 1 -> 1.0",
    ]
    assert changes[1].old is ABSENT
    assert changes[1].to_json() == {"path": "layers[1].eps", "old": None, "new": 1e-6}
    assert changes[2].to_json()["new"] == f"{__name__}:GroupNorm"


def test_the_root_class() -> None:
    assert diff(Norm.Config(), GroupNorm.Config())[0].path == "."
