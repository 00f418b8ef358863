"""What a run ran with, for events and checkpoints: plugins, libraries and devices; the command and its commit."""

import functools
import importlib.metadata
import os
import platform
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
from kanawa.plugins import host
from kanawa.plugins.devices import processor_name

_LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "orbax-checkpoint", "grain")
_GIT_SECONDS = 5.0


@functools.cache
def environment_record() -> dict[str, Any]:
    """Returns {"plugins", "versions", "python", "host", "devices", "processes"}; versions by distribution."""
    return {
        "plugins": dict(sorted({**host().plugin_set(), "kanawa": _version("kanawa")}.items())),
        "versions": {name: _version(name) for name in _LIBRARIES},
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "processes": jax.process_count(),
    }


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


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
