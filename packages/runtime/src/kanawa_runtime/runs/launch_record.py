"""Who started an attempt, from where and on what: the command, the working folder's commit, the processor."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from kanawa.plugins.devices import processor_name

_GIT_SECONDS = 5.0


def launch_record() -> dict[str, Any]:
    """Returns {"command", "working_directory", "git", "processor", "cores"}; `git` is None outside of a work tree."""
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "working_directory": str(Path.cwd()),
        "git": git_record(Path.cwd()),
        "processor": processor_name(),
        "cores": os.cpu_count(),
    }


def git_record(folder: Path) -> dict[str, Any] | None:
    """Returns {"commit", "branch", "dirty"} of the work tree a folder lies in; None without one, or without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    # Files that git doesn't know are mostly runs and notes; what was changed is what makes a commit untrue.
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"), "dirty": changed != ""}


def _git(folder: Path, *arguments: str) -> str | None:
    """Returns what git says, None where it can't be asked."""
    # Optional locks off: a status must not write to a repository that somebody is working in.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
