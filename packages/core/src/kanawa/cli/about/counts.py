"""How many parameters the catalog's models have, cached: counting one imports JAX and builds the model."""

from __future__ import annotations

import contextlib
import json
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from kanawa.errors import INTERRUPTIONS
from kanawa.local_path import cache_folder
from kanawa.plugins import ComponentState, component
from kanawa.plugins.sources import plugins_signature

if TYPE_CHECKING:
    from kanawa.config import Config

#: Kinds whose components have parameters to count.
COUNTED = ("models", "experiments")
_UNITS = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3))


class Count(NamedTuple):
    """All parameters of a model, and those that one token meets."""

    total: int
    active: int

    def __str__(self) -> str:
        met = f", of which a token meets {self.active:,} ({short(self.active)})" if self.active != self.total else ""
        return f"{self.total:,} parameters ({short(self.total)}){met}"


class Counts:
    """Counts by component, cached in a file that is valid until the installed plugins change."""

    def __init__(self) -> None:
        self._file = cache_folder() / "parameter_counts.json"
        self._signature = plugins_signature()
        self._known: dict[str, list[int]] = {}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            record = json.loads(self._file.read_text())
            if record.get("signature") == self._signature:
                self._known = dict(record["counts"])

    def known(self, state: ComponentState) -> Count | None:
        """Returns a count that was made before; None if it wasn't, or the component has nothing to count."""
        count = self._known.get(_key(state))
        return Count(*count) if count else None

    def of(self, state: ComponentState) -> Count | None:
        """Returns a component's count, made now if need be; None where it can't be used or has no model."""
        key = _key(state)
        if key not in self._known:
            count = _counted(state)
            self._known[key] = [] if count is None else list(count)
        return self.known(state)

    def save(self) -> None:
        """Writes the counts; without a writable cache they are counted again next time."""
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            partial = self._file.with_name(f".{self._file.name}.{uuid.uuid4().hex[:12]}")
            partial.write_text(json.dumps({"signature": self._signature, "counts": self._known}))
            partial.replace(self._file)


def count_of(cfg: Config) -> Count | None:
    """Returns the count of an experiment's model, or of a model's config; None for what has none."""
    from kanawa.errors import KanawaError
    from kanawa.module import Module, count_parameters

    model: Any = cfg.model if "model" in cfg.fields() else cfg
    try:
        built = model.build()
    except KanawaError:
        return None
    return Count(*count_parameters(built)) if isinstance(built, Module) else None


def short(number: int) -> str:
    """Returns a count as models are called by it: 596M, 7.24B, 671B."""
    for unit, size in _UNITS:
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def _counted(state: ComponentState) -> Count | None:
    if not state.state.usable or state.kind not in COUNTED:
        return None
    try:
        return count_of(component(state.kind, state.key)())
    except INTERRUPTIONS:
        raise
    except BaseException:  # a stranger's recipe may fail in any way; a list of names is no place to say so
        return None


def _key(state: ComponentState) -> str:
    return f"{state.kind} {state.key}"
