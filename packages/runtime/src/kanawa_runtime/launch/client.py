"""Calls of a system's own client, the YAML that it reads, and errors between a job and the system that runs it."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kanawa.errors import KanawaError, UsageError
from kanawa.guarded_read import guarded_open

_SECONDS = 120.0
_MOST_CHARACTERS = 2000
_WIDE = 100_000


class JobError(UsageError):
    """The job asks for what its launcher can't give; `problems` lists everything, not only the first."""

    def __init__(self, launcher: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        lines = [f"{launcher} can't run this job:", *(f"- {problem}" for problem in self.problems)]
        super().__init__("\n".join(lines))


class LauncherError(KanawaError):
    """The system's own client is missing, or refused a call."""


def call(command: Sequence[str], install: str, stdin: str | None = None) -> str:
    """Returns what a client tool writes to stdout.

    Raises LauncherError where it isn't there (`install` says what to do), takes too long, or refuses.
    """
    if shutil.which(command[0]) is None:
        message = f"{command[0]} isn't on PATH: {install}; --dry-run shows the files without it"
        raise LauncherError(message)
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, input=stdin, timeout=_SECONDS, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        message = f"{shlex.join(command)} gave no answer within {_SECONDS:.0f} s: the system may be overloaded or down"
        raise LauncherError(message) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-_MOST_CHARACTERS:]
        message = f"{shlex.join(command)} failed with exit code {done.returncode}: {said or 'it said nothing'}"
        raise LauncherError(message)
    return done.stdout


def end_of(file: Path, most: int) -> str:
    """Returns the last `most` bytes of a log as text; raises UnreadableFileError for what is no ordinary file."""
    with guarded_open(file) as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - most))
        return stream.read(most).decode(errors="replace")


def to_yaml(data: Any) -> str:
    """Returns data as YAML, in its own order and without references; raises LauncherError without PyYAML."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        message = "manifests are written with PyYAML, which is missing: pip install 'kanawa-runtime[kubernetes]'"
        raise LauncherError(message) from error

    class Plain(yaml.SafeDumper):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            """Two pods with equal resources share an object here, which is not written as `&id001`."""
            return True

        def represent_list(self, data: Any) -> Any:
            """A hundred exit codes are one line."""
            flow = bool(data) and all(type(each) is int for each in data)
            return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)

    Plain.add_representer(list, Plain.represent_list)
    text: str = yaml.dump(data, Dumper=Plain, sort_keys=False, width=_WIDE)
    return text
