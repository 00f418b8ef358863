"""What a component raises while it is built becomes one error that names it, its place in the config and its values."""

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from kanawa.config import Config, Configurable
from kanawa.config.value_text import node_text, value_text
from kanawa.errors import INTERRUPTIONS, ConfigError, KanawaError

_MOST_TOLD = 12


class BuildError(ConfigError):
    """A component failed while it was built, with an error of its own or of a library; the cause has the traceback."""


@contextlib.contextmanager
def blamed(cfg: Any, path: str = "") -> Iterator[None]:
    """Lets errors of ours pass, and raises BuildError for all others of the block, which builds `cfg`.

    `path` is that of `cfg` in the experiment's config.
    """
    try:
        yield
    except (*INTERRUPTIONS, KanawaError):
        raise
    except BaseException as error:  # SystemExit too: a library that gives up would end the program in silence
        raise BuildError(_blame(error, cfg, path)) from error


def _blame(error: BaseException, cfg: Any, path: str) -> str:
    failed = _innermost(error.__traceback__)
    node = cfg if failed is None else getattr(failed, "config", cfg)
    place = _place(failed, path) or type(cfg).__qualname__
    component = node_text(node) if isinstance(node, Config) else type(failed).__qualname__
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    lines = [f"{place} can't be built: {component} raised {reason}"]
    values = _values(node)
    if values:
        lines.append(f"its values are {values}")
    lines.append("change these values, or see where it fails: --traceback (KANAWA_TRACEBACK=1)")
    return "\n  ".join(lines)


def _innermost(trace: TracebackType | None) -> Configurable | None:
    """Returns the object that was being made where the error arose; None where it was a plain function."""
    failed: Configurable | None = None
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, Configurable):
            failed = owner
        trace = trace.tb_next
    return failed


def _place(failed: Any, path: str) -> str:
    """Returns the config path of a module below the root at `path`; `path` itself for anything else."""
    names: list[str] = []
    while getattr(failed, "parent", None) is not None:
        names.append(failed.name)
        failed = failed.parent
    return ".".join([path, *reversed(names)] if path else reversed(names))


def _values(node: Any) -> str:
    """Returns the plain values of a config, those first that somebody set."""
    if not isinstance(node, Config):
        return ""
    leaves = [(name, value) for name, value in vars(node).items() if isinstance(value, bool | int | float | str)]
    leaves.sort(key=lambda leaf: not node.is_set(leaf[0]))
    return ", ".join(f"{name}={value_text(value)}" for name, value in leaves[:_MOST_TOLD])
