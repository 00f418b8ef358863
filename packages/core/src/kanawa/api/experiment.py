"""`kn.experiment`: an experiment as a record of what was asked and of what that composes to."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from kanawa.composition.experiment import Composition, Override, compose
from kanawa.composition.naming import experiment_config
from kanawa.composition.target import Target, parse_target
from kanawa.config import Config

#: "moe:num_experts=4", as `--modify`; several are applied in order.
Modify: TypeAlias = str | Sequence[str]
#: {"seed": 1, "model.stack.num_layers": 2}, or "seed=1" as `--set`; strings are read by the field's type.
Set: TypeAlias = Mapping[str, Any] | str | Sequence[str]


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """A composed experiment. `what`, `on`, `modify`, `set` and `data` are what was asked; its repr is that call."""

    what: str | Config
    on: str | None
    modify: tuple[str, ...]
    set: tuple[Override, ...]
    data: str | None
    #: The frozen config with its origins, the mesh rule that applied, and the built model.
    composition: Composition = dataclasses.field(repr=False)

    @property
    def name(self) -> str:
        """The catalogued name, the folder's name, or the config's class."""
        return self.composition.name

    @property
    def config(self) -> Config:
        """The resolved config, frozen; `clone()` gives one to change, which `kn.experiment` takes."""
        return self.composition.config

    @property
    def target(self) -> Target | None:
        """The hardware that it is composed for; None where none was named."""
        return self.composition.target

    def for_target(self, on: str | Target | None) -> Experiment:
        """Returns the same experiment composed for other hardware, whose mesh rule applies."""
        return _composed(self.what, on, self.modify, self.set, self.data)

    def __repr__(self) -> str:
        typed = [one if isinstance(one, str) else f"{one[0]}={one[1]!r}" for one in self.set]
        named = {"on": self.on, "modify": list(self.modify), "set": typed, "data": self.data}
        arguments = [repr(self.what), *(f"{name}={value!r}" for name, value in named.items() if value)]
        return f"kn.experiment({', '.join(arguments)})"


def experiment(
    what: str | Path | Config | Experiment,
    *,
    on: str | Target | None = None,
    modify: Modify = (),
    set: Set = (),  # noqa: A002 - as `--set`
    data: str | None = None,
) -> Experiment:
    """Returns an experiment, composed and checked.

    Args:
        what: the name of an experiment or a model, a run's or a Hugging Face folder, a JSON file with a config, an
            experiment's config, a model's config (which gets default data and a learner), or an Experiment, to which
            the other arguments add.
        on: hardware to compose for, such as "v5p-512" or "cpu-8".
        modify: modifiers of the catalog with their arguments, applied in order.
        set: config paths and values, set last.
        data: other data: a glob of text files, a folder, a .jsonl file, or the name of an experiment or a data source.

    Raises a CompositionError with all problems at once; a single one is raised as the step raised it.
    """
    modifiers, overrides = as_modifiers(modify), as_overrides(set)
    if isinstance(what, Experiment):
        if on is None and data is None and not modifiers and not overrides:
            return what
        modifiers, overrides = (*what.modify, *modifiers), (*what.set, *overrides)
        on = what.on if on is None else on
        data = what.data if data is None else data
        what = what.what
    asked = str(what) if isinstance(what, Path) else what
    return _composed(asked, on, modifiers, overrides, data)


def as_modifiers(modify: Modify) -> tuple[str, ...]:
    """Returns modifiers as `--modify` has them."""
    return (modify,) if isinstance(modify, str) else tuple(modify)


def as_overrides(values: Set) -> tuple[Override, ...]:
    """Returns overrides as `compose` takes them: "path=value", or a path with a value that no text stands for."""
    if isinstance(values, str):
        return (values,)
    if isinstance(values, Mapping):
        return tuple(_override(path, value) for path, value in values.items())
    return tuple(values)


def _override(path: str, value: Any) -> Override:
    if isinstance(value, str):
        return f"{path}={value}"
    try:
        is_literal = ast.literal_eval(repr(value)) == value
    except (ValueError, SyntaxError):  # a config, a class, an array
        is_literal = False
    return f"{path}={value!r}" if is_literal else (path, value)


def _composed(
    what: str | Config,
    on: str | Target | None,
    modifiers: tuple[str, ...],
    overrides: tuple[Override, ...],
    data: str | None,
) -> Experiment:
    base, left = what, data
    if isinstance(what, Config) and "model" not in what.fields():
        base, left = experiment_config(what, parse_target(on) if isinstance(on, str) else on, data), None
    # A selector that can't be read is one of the problems that `compose` reports together.
    composition = compose(base, on, modifiers, overrides, left)
    target = None if on is None else composition.target
    return Experiment(what, None if target is None else target.selector, modifiers, overrides, data, composition)
