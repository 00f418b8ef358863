"""Modifier: a configurable function from config to config."""

import abc
import functools
from collections.abc import Callable
from typing import Any

from kanawa.config.configurable import Configurable
from kanawa.config.record import Config
from kanawa.config.rewrite import acting


class Modifier(Configurable):
    """Rewrites a config: changes it in place or returns another one.

    While it runs, replacements are made in its name, so that two modifiers that replace the same
    part of a tree are found out.
    """

    @abc.abstractmethod
    def __call__(self, cfg: Config) -> Config:
        """Returns the rewritten config."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls).get("__call__")
        if own is not None and not getattr(own, "__isabstractmethod__", False):
            cls.__call__ = _named(own)  # type: ignore[method-assign]


def _named(call: Callable[..., Config]) -> Callable[..., Config]:
    @functools.wraps(call)
    def wrapper(self: Modifier, cfg: Config) -> Config:
        with acting(type(self).__qualname__):
            return call(self, cfg)

    return wrapper
