"""Kanawa trains and serves large models by fitting independently versioned packages together.

Every public name is here and is imported when first used: `import kanawa` alone loads no
third-party module. To add a name, write it in `__init__.pyi`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

# Each public name and its module, as the stub for type checkers has them: "from MODULE import NAME as NAME".
with open(f"{__file__}i", encoding="utf-8") as _stub:
    _HOME = {words[3]: words[1] for words in map(str.split, _stub) if words[:1] == ["from"]}
# Functions named like a subpackage: the package can be called.
_CALLED = ("kernels",)
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Imports a public name on first use and keeps it."""
    if name not in _HOME:
        message = f"module 'kanawa' has no attribute {name!r}"
        raise AttributeError(message)
    if name in _CALLED or _HOME[name] == __name__:
        return import_module(f"kanawa.{name}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the public names and the loaded submodules."""
    return sorted({*__all__, *globals()})


class _CalledPackage(ModuleType):
    """A subpackage that is also a function of the facade: `from kanawa.kernels import Kernel`, and `kn.kernels(…)`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function of this name in `kanawa.api`."""
        name = self.__name__.rpartition(".")[2]
        return getattr(import_module(f"kanawa.api.{name}"), name)(*args, **kwargs)


class _Facade(ModuleType):
    """Makes such a subpackage callable when the import system binds it here, in whatever order things are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CALLED and type(value) is ModuleType:
            value.__class__ = _CalledPackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade
