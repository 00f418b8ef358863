"""The process that a run would be: its limits, and variables that change what the compiler or JAX does."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from kanawa.plugins import Finding

_FILES_WANTED = 4096
_SHARED_BYTES_WANTED = 2**30
_SECONDS = 60
#: Variables with which a program is right and slow, or other than it would be, with what they do.
_ODD = {
    "JAX_DISABLE_JIT": "nothing is compiled: every operation runs by itself",
    "JAX_ENABLE_X64": "numbers are 64 bits wide where a program doesn't say: twice the memory, no matrix units",
    "JAX_DEBUG_NANS": "every step waits for its result, and a NaN ends the run",
    "JAX_DEFAULT_MATMUL_PRECISION": "products are computed in another precision than the experiment was measured with",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "memory is allocated anew for every array, or shared with others",
}
_OFF = ("", "0", "false", "False", "off")


def findings() -> list[Finding]:
    """Returns what this process's limits and variables would do to a run."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [check_open_files(soft), *check_shared_memory(Path("/dev/shm"))]
    return [*limits, *check_variables(os.environ), *check_flags_parse(os.environ)]


def check_open_files(limit: int) -> Finding:
    """Returns whether a process may open as many files as data and checkpoints of a large model need."""
    message = f"a process may open {limit:,} files"
    if 0 <= limit < _FILES_WANTED:
        meaning = "large datasets and checkpoints of many arrays fail with 'too many open files'"
        return Finding("warning", "open files", message, "ulimit -n 65536, or LimitNOFILE= of the service", meaning)
    return Finding("ok", "open files", message)


def check_shared_memory(place: Path) -> list[Finding]:
    """Returns whether processes of one machine can share enough memory, which containers keep to 64 MB."""
    if not place.is_dir():
        return []
    size = shutil.disk_usage(place).total
    message = f"{place} holds {size / 2**20:,.0f} MiB"
    if size < _SHARED_BYTES_WANTED:
        meaning = "collectives and data workers fail, or become slow, on machines with several accelerators"
        fix = "docker run --shm-size=8g, or an emptyDir of medium Memory at /dev/shm"
        return [Finding("warning", "shared memory", message, fix, meaning)]
    return [Finding("ok", "shared memory", message)]


def check_variables(environment: Mapping[str, str]) -> list[Finding]:
    """Returns the variables that are set and make a run slow or another one."""
    odd = [
        Finding("warning", name, f"{name}={environment[name]}", f"unset {name}", meaning)
        for name, meaning in _ODD.items()
        if environment.get(name, "") not in _OFF
    ]
    return odd or [Finding("ok", "variables", "none is set that makes a run slow or another one")]


def check_flags_parse(environment: Mapping[str, str]) -> list[Finding]:
    """Returns whether the installed compiler knows the flags that it will get, by starting it once."""
    if not environment.get("XLA_FLAGS", "").strip():
        return []
    program = "import jax; jax.devices()"
    variables = {**environment, "JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=variables,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [Finding("warning", "XLA_FLAGS", f"the compiler didn't start within {_SECONDS} s with them")]
    if done.returncode == 0:
        return [Finding("ok", "XLA_FLAGS", "the installed compiler knows every flag")]
    message = next((line for line in done.stderr.splitlines() if "lag" in line), done.stderr.strip()[-200:])
    message = message.partition("] ")[2] or message
    meaning = "every process ends as soon as it starts JAX"
    return [Finding("error", "XLA_FLAGS", message[:300], "remove that flag, or use the jaxlib that has it", meaning)]


def check_devices(seconds: int = _SECONDS) -> Finding:
    """Returns what JAX starts on this machine, in a process of its own, so that none is held."""
    program = "import jax; d = jax.devices(); print(d[0].platform, len(d), d[0].device_kind, sep='|')"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        meaning = "a device that hangs, or that another process holds"
        return Finding("error", "devices", f"JAX didn't start within {seconds} s", "look who uses it", meaning)
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding("error", "devices", f"JAX doesn't start: {message[:300]}", "", "no run can begin here")
    platform, count, kind = done.stdout.strip().splitlines()[-1].split("|")
    return Finding("ok", "devices", f"JAX runs on {count} x {kind} ({platform})")
