"""Configurable: a class whose constructor takes its nested Config."""

import abc
from typing import Any, ClassVar, Self

from kanawa.config.freezing import refuse_role
from kanawa.config.record import Config as Record
from kanawa.config.schema import SchemaError
from kanawa.errors import ConfigError


class Configurable(abc.ABC):  # noqa: B024 (what is abstract, subclasses say)
    """A class with a nested `Config`; one that adds no fields gets its parent's, as its own class.

    The config that built an object is `self.config`, frozen. A class with abstract methods is a role: building it is
    an error that names what fills it. A role whose methods all have defaults says so: `class Positions(Module,
    abstract=True)`. Its subclasses are implementations unless they say so too.
    """

    class Config(Record):
        """Fields of the class; subclasses derive their Config from their parent's."""

    # The declared type is the base record: each class narrows it.
    config: Any

    _abstract: ClassVar[bool] = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Raises AbstractRoleError for a role."""
        refuse_role(cls)
        return super().__new__(cls)

    def __init__(self, cfg: Record, **runtime: Any) -> None:
        if runtime:
            message = (
                f"{type(self).__qualname__} takes no runtime arguments, got "
                f"{', '.join(runtime)}; define __init__(self, cfg, ...) to receive them"
            )
            raise ConfigError(message)
        if not isinstance(cfg, type(self).Config):
            message = (
                f"{type(self).__qualname__} is built from {type(self).__qualname__}.Config, "
                f"got {type(cfg).__qualname__}"
            )
            raise ConfigError(message)
        self.config = cfg if cfg.is_frozen else cfg.clone().freeze()

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._abstract = abstract
        own: Any = vars(cls).get("Config")
        parents = _parent_configs(cls)
        if own is None or (isinstance(own, type) and "_target" in vars(own)):
            bases = parents if own is None else (own,)
            own = type("Config", bases, {"__module__": cls.__module__, **_names(cls)})
            cls.Config = own  # type: ignore[misc]
        _check_bases(cls, own, parents)
        own._target = cls


Configurable.Config._target = Configurable


def _names(cls: type) -> dict[str, str]:
    return {"__qualname__": f"{cls.__qualname__}.Config", "__doc__": f"Config of {cls.__name__}."}


def _parent_configs(cls: type) -> tuple[type[Record], ...]:
    """Returns the Configs of the base classes, without those that another one derives from."""
    configs = [b.Config for b in cls.__bases__ if issubclass(b, Configurable)]
    derived = [c for c in configs if not any(other is not c and issubclass(other, c) for other in configs)]
    return tuple(dict.fromkeys(derived))


def _check_bases(cls: type, own: Any, parents: tuple[type[Record], ...]) -> None:
    for parent in parents:
        if not isinstance(own, type) or not issubclass(own, parent):
            message = (
                f"{cls.__qualname__}.Config must derive from {parent.__qualname__}: "
                f"write `class Config({', '.join(p.__qualname__ for p in parents)}):`"
            )
            raise SchemaError(message)
