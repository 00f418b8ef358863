"""What a command says of a path that is no run, before anything heavy is loaded."""

from pathlib import Path

from kanawa.errors import UsageError, did_you_mean
from kanawa.guarded_read import UnreadableFileError, guarded_json
from kanawa.local_path import local_path

from kanawa_runtime.storage.place import stands_for
from kanawa_runtime.runs.run_directory import CONFIG, EVENTS, MOST_CONFIG_BYTES

_MOST_NAMED = 8


class NoRunError(UsageError):
    """A path holds no run; the message says what lies there instead."""


def check_is_directory(path: Path) -> None:
    """Raises NoRunError, with near names, where there is no directory at the path; UsageError for an address."""
    if stands_for(path) is None:
        local_path(path)
    if path.is_dir():
        return
    if path.exists():
        inside = f"; did you mean {str(path.parent)!r}?" if looks_like_run(path.parent) else ""
        message = f"{path} is a file, expected a run's directory{inside}"
        raise NoRunError(message)
    parent = path.parent
    if not parent.is_dir():
        message = f"there is no run {path}: {parent} does not exist either (the working folder is {Path.cwd()})"
        raise NoRunError(message)
    near = did_you_mean(path.name, runs_in(parent))
    message = f"there is no run {path}; kanawa train EXPERIMENT --run {path} starts one{near}"
    raise NoRunError(message)


def check_is_run(path: Path) -> None:
    """Raises NoRunError where there is no run: no config and no events."""
    check_is_directory(path)
    if not (path / EVENTS).is_file() and not _is_own_config(path / CONFIG):
        raise not_a_run(path)


def _is_own_config(file: Path) -> bool:
    """Returns whether a file may be a run's config, and isn't the one of a Hugging Face model."""
    try:
        content = guarded_json(file, file.parent, most=MOST_CONFIG_BYTES)
    except OSError:
        return False
    except UnreadableFileError:
        return True  # damaged: the report says how
    return isinstance(content, dict) and "$type" in content


def not_a_run(path: Path) -> NoRunError:
    """Returns the error of a directory that holds no run and no model."""
    inner = runs_in(path)[:_MOST_NAMED]
    if inner:
        return NoRunError(f"{path} is no run itself; it holds {', '.join(str(path / name) for name in inner)}")
    try:
        # An unreadable config.json is the reason to report, not the missing events.
        guarded_json(path / CONFIG, path, most=MOST_CONFIG_BYTES)
    except UnreadableFileError as error:
        return NoRunError(str(error))
    except OSError:
        pass
    content = sorted(entry.name for entry in path.iterdir())[:_MOST_NAMED]
    held = f"it holds {', '.join(content)}" if content else "it is empty"
    return NoRunError(f"{path} is not a run: it has no {EVENTS} and no {CONFIG} of ours; {held}")


def looks_like_run(path: Path) -> bool:
    """Returns whether a directory has what a run or a model's folder begins with."""
    return (path / CONFIG).is_file() or (path / EVENTS).is_file()


def runs_in(folder: Path) -> list[str]:
    """Returns the names of runs and model folders directly below a folder."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and looks_like_run(entry))
