"""Configs that were saved beside the plugins they were made with: what is missing now is named, with its version."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kanawa.config import CallableNameError, Config, ConfigLoadError, from_json, resolve_callable
from kanawa.errors import UsageError
from kanawa.guarded_read import UnreadableFileError, guarded_json
from kanawa.plugins import host
from kanawa.plugins.discovery import CORE, normalise

_REFERENCES = ("$type", "$call", "$callable", "$enum")
_TOLD_PLACES = 3
_MOST_BYTES = 2**24  # of plugins.json
_MOST_CONFIG_BYTES = 2**26


class MissingPluginError(ConfigLoadError):
    """A saved config needs code that can't be imported here; the config itself is sound."""


def read_saved(data: Any, plugins: Mapping[str, str] | None = None) -> Config:
    """Returns the config in the JSON that `to_json` wrote.

    `plugins` is the plugin set recorded with it (distribution to version). Raises MissingPluginError, which names every
    package that is missing, skipped or of another version; ConfigLoadError for what is wrong with the JSON itself.
    """
    try:
        return from_json(data)
    except ConfigLoadError as error:
        # Only after a failure: looking up every reference imports what a sound config may not need.
        failed = _failures(data)
        if not failed:
            _blame_versions(error, plugins or {})
            raise
        reasons: dict[str, str] = {}
        for name, _, reason in failed:
            # One reason per package: "kanawa_x" of "kanawa_x.layers:Leaf".
            reasons.setdefault(name.partition(":")[0].partition(".")[0], reason)
        places = ", ".join(f"{name} at {path or 'the root'}" for name, path, _ in failed[:_TOLD_PLACES])
        more = f" and {len(failed) - _TOLD_PLACES} more" if len(failed) > _TOLD_PLACES else ""
        lines = [f"it needs code that can't be loaded here: {places}{more}"]
        lines += [_advice(top, reasons[top], plugins or {}) for top in sorted(reasons)]
        raise MissingPluginError("\n".join(lines)) from error


def read_config_file(path: Path, plugins: Mapping[str, str] | None = None) -> Config:
    """Returns the config in a JSON file; raises UsageError where it can't be read, else what `read_saved` raises."""
    try:
        data = guarded_json(path, most=_MOST_CONFIG_BYTES)
    except (OSError, UnreadableFileError) as error:
        message = f"can't read the config in {path}: {error}; expected a run's config.json"
        raise UsageError(message) from error
    return read_saved(data, plugins)


def _blame_versions(error: ConfigLoadError, recorded: Mapping[str, str]) -> None:
    """Raises MissingPluginError where plugins changed since: fields come and go with versions, and files seldom rot."""
    now = host().installed()
    changed = [
        f"{name} was {then}, is {now[name]} now"
        if name in now
        else f"{name} {then} was recorded, it isn't installed now"
        for name, then in sorted(recorded.items())
        if now.get(name) != then
    ]
    if changed:
        message = f"the plugins installed now don't read it: {error}\n" + "\n".join(changed)
        raise MissingPluginError(message) from error


def recorded_plugins(folder: Path) -> dict[str, str]:
    """Returns the plugin set in a run's plugins.json, distribution to version; empty where there is none to read."""
    try:
        return dict(guarded_json(folder / "plugins.json", folder, most=_MOST_BYTES)["plugins"])
    except (OSError, UnreadableFileError, ValueError, KeyError, TypeError):
        return {}  # The config can be read without it; an error then has less detail.


def _failures(data: Any) -> list[tuple[str, str, str]]:
    """Returns (name, path, reason) for each reference that leads nowhere, once a name."""
    failed: dict[str, tuple[str, str, str]] = {}
    for name, path in _references(data, ""):
        if name not in failed:
            try:
                resolve_callable(name)
            except CallableNameError as error:
                failed[name] = (name, path, str(error))
    return list(failed.values())


def _references(data: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields every "module:attribute" of the JSON with its path."""
    if isinstance(data, list):
        for i, item in enumerate(data):
            yield from _references(item, f"{path}[{i}]")
    elif isinstance(data, dict):
        for key in _REFERENCES:
            if isinstance(data.get(key), str):
                yield data[key], path
        for key, value in data.items():
            if key in ("$tuple", "$dict"):
                yield from _references(value, path)
            elif not key.startswith("$"):
                yield from _references(value, f"{path}.{key}" if path else key)


def _advice(top: str, reason: str, recorded: Mapping[str, str]) -> str:
    """Returns what to do about one top-level package."""
    installed = host().installed()
    package = next((name for name in (*recorded, *installed) if normalise(top) == normalise(name)), None)
    if package is None:
        absent = [name for name in recorded if name not in installed and name != CORE]
        if absent:
            wanted = " ".join(f"{name}=={recorded[name]}" for name in absent)
            return f"{top} may be of {', '.join(absent)}, recorded with it and not installed: pip install {wanted}"
        return f"{top} belongs to no recorded plugin ({reason}); if it is your own module, put its folder on PYTHONPATH"
    then, now = recorded.get(package), installed.get(package)
    if "is not imported:" in reason:
        return reason.partition("is not imported: ")[2]
    if now is None:
        return f"{package} {then} was recorded with it and is not installed: pip install {package}=={then}"
    if then not in (None, now):
        return f"{package} was {then} then and is {now} now: pip install {package}=={then}"
    return f"{package} {now} is installed, but {reason}"
