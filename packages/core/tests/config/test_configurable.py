"""Configurables: nested configs, roles, building."""

import abc
from typing import Any

import pytest
from kanawa.config import REQUIRED, Configurable, IncompleteConfigError, SchemaError
from kanawa.errors import ConfigError


class Role(Configurable, abc.ABC):
    class Config(Configurable.Config):
        width: int = REQUIRED

    @abc.abstractmethod
    def area(self) -> int:
        """Returns the area."""


class Square(Role):
    def area(self) -> int:
        return self.config.width**2


class Box(Role):
    class Config(Role.Config):
        depth: int = 2

    def __init__(self, cfg: Role.Config, *, scale: int = 1) -> None:
        super().__init__(cfg)
        self.scale = scale

    def area(self) -> int:
        return self.config.width * self.config.depth * self.scale


def test_config_is_made_for_each_class() -> None:
    assert Square.Config is not Role.Config
    assert issubclass(Square.Config, Role.Config)
    assert Square.Config._target is Square
    assert Role.Config._target is Role
    assert Square.Config.__qualname__ == "Square.Config"


def test_build_freezes_a_copy_and_passes_runtime_arguments() -> None:
    cfg = Box.Config(width=3)
    box = cfg.build(scale=10)
    assert box.area() == 60
    assert box.config.is_frozen
    assert not cfg.is_frozen
    assert Square(Square.Config(width=2)).area() == 4


def test_a_frozen_config_is_kept_as_it_is() -> None:
    cfg = Square.Config(width=3).freeze()
    assert cfg.build().config is cfg


def test_building_an_incomplete_config() -> None:
    with pytest.raises(IncompleteConfigError, match=r"width is REQUIRED and not set"):
        Square.Config().build()


def test_building_a_role() -> None:
    with pytest.raises(ConfigError, match=r"Role is a role, not an implementation \(abstract: area"):
        Role.Config(width=1).build()


def test_unexpected_runtime_arguments_and_configs() -> None:
    with pytest.raises(ConfigError, match="Square takes no runtime arguments, got mesh"):
        Square.Config(width=1).build(mesh=1)
    with pytest.raises(ConfigError, match=r"Square is built from Square.Config, got Config"):
        Square(Configurable.Config())


def test_config_must_derive_from_the_parents() -> None:
    with pytest.raises(SchemaError, match=r"Stray.Config must derive from Role.Config"):

        class Stray(Role):
            class Config(Configurable.Config):
                width: int = 1


def test_several_parents() -> None:
    class Named(Configurable):
        class Config(Configurable.Config):
            name: str = "n"

    class Both(Square, Named):
        pass

    cfg: Any = Both.Config(width=1, name="b")
    assert isinstance(cfg, Square.Config)
    assert isinstance(cfg, Named.Config)
    assert cfg.build().area() == 1


def test_a_config_taken_from_another_class_gets_its_own_target() -> None:
    class Alias(Role):
        Config = Box.Config

    assert Alias.Config is not Box.Config
    assert Box.Config._target is Box
    assert Alias.Config(width=1).depth == 2
