"""`kn.show`: an experiment's resolved config, where its values come from, and how it differs from another."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from kanawa.api.experiment import Experiment, Modify, Set, experiment
from kanawa.composition.experiment import Composition, compose
from kanawa.composition.naming import NoTemplateError
from kanawa.composition.saved import read_config_file, recorded_plugins
from kanawa.composition.target import Target
from kanawa.config import Change, Config, diff, to_json, to_text
from kanawa.errors import UsageError
from kanawa.local_path import local_path


@dataclasses.dataclass(frozen=True)
class Why:
    """One assignment of a value: who made it and where. Attributes are the keys of `show --why --json`."""

    path: str
    value: str
    set_by: str
    where: str

    def as_json(self) -> dict[str, str]:
        """Returns the record for a machine."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Shown:
    """A resolved config. `str()` is its text, a path and a value a line; a notebook shows that too."""

    composition: Composition
    #: Why this is a model's config alone and no experiment; empty for an experiment.
    note: str = ""

    @property
    def config(self) -> Config:
        """The frozen config."""
        return self.composition.config

    @property
    def text(self) -> str:
        """The stable text form, as golden files have it."""
        return to_text(self.config)

    def as_json(self) -> Any:
        """Returns the config tree as `show --json` writes it; `kanawa.from_json` reads it back."""
        return to_json(self.config)

    def why(self, path: str) -> list[Why]:
        """Returns every assignment of the value at a path, first to last; the last one counts."""
        return [
            Why(path, origin.value, f"{origin.stage} {origin.detail}".strip(), origin.where)
            for origin in self.config.origin_history(path)
        ]

    def diff(self, other: str | Path | Config | Experiment | Shown) -> list[Change]:
        """Returns what changed from `other` to this: path, old and new value, in path order.

        `other` is an experiment or a model by name, a run's folder, a config.json, or what `kn.experiment` and
        `kn.show` return.
        """
        return diff(_other(other), self.config)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def show(
    what: str | Path | Config | Experiment,
    *,
    on: str | Target | None = None,
    modify: Modify = (),
    set: Set = (),  # noqa: A002 - as `--set`
    data: str | None = None,
) -> Shown:
    """Returns the resolved config of an experiment; of a model that has no experiment, the model's config alone.

    The arguments are those of `kn.experiment`.
    """
    try:
        return Shown(experiment(what, on=on, modify=modify, set=set, data=data).composition)
    except NoTemplateError as error:
        if data is not None:
            raise
        from kanawa.api.experiment import as_modifiers, as_overrides

        alone = compose(error.model, modifiers=as_modifiers(modify), overrides=as_overrides(set))
        return Shown(alone, str(error))


def _other(other: str | Path | Config | Experiment | Shown) -> Config:
    """Returns the config in a run's folder or file, or else of the experiment or model with that name."""
    if isinstance(other, Config):
        return other
    if isinstance(other, (Experiment, Shown)):
        return other.config
    path = local_path(str(other), "--diff")
    if path.is_dir():
        path /= "config.json"
    elif not path.is_file():
        if path.suffix == ".json" or len(path.parts) > 1:
            message = f"--diff {other}: no such folder or file"
            raise UsageError(message)
        return compose(str(other)).config
    return read_config_file(path, recorded_plugins(path.parent))
