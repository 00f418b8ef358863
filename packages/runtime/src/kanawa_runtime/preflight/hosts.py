"""Whether hosts are alike: each leaves a record in a folder that all of them see, and compares what it finds there.

Run on all hosts at once (`srun kanawa doctor --hosts 16 --run /shared/run`): versions, plugins and flags have to agree,
or programs differ and the gang hangs in its first collective; clocks are compared by that which stamps the folder's
files.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kanawa.plugins import Finding, host
from kanawa.plugins.devices import device_specs
from kanawa.plugins.discovery import installed_version

from kanawa_runtime.preflight.file_system import (
    CLOCK_FIX,
    CLOCK_MEANING,
    MOST_SKEW_SECONDS,
    judged,
    skew_seconds,
)

_FOLDER = ".kanawa-doctor"
#: Older records are those of an earlier call.
_FRESH_SECONDS = 600.0
_FLAGS = ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION")
#: What has to be the same on all hosts, with what a difference does.
_ALIKE = {
    "plugins": "programs differ, and the gang hangs in its first collective or computes two things",
    "versions": "compilers differ, and so do the programs they make",
    "flags": "compilers get different flags, and the programs differ",
    "python": "what is unpickled or hashed may differ",
}


def findings(folder: Path, count: int, wait_seconds: float) -> list[Finding]:
    """Leaves this host's record, waits for those of `count` hosts, and returns how they differ. Raises OSError."""
    place = folder / _FOLDER
    place.mkdir(parents=True, exist_ok=True)
    mine = record(place)
    written = place / f"{mine['host']}.{os.getpid()}.json"
    partial = written.with_suffix(".partial")
    partial.write_text(json.dumps(mine), encoding="utf-8")
    partial.replace(written)
    deadline = time.monotonic() + wait_seconds
    records = _records(place)
    while len(records) < count and time.monotonic() < deadline:
        time.sleep(0.1)
        records = _records(place)
    return compare(records, count)


def record(place: Path) -> dict[str, Any]:
    """Returns what this host is, and how far its clock is from that of the folder's file system."""
    states = sorted(f"{p.distribution} {p.version} {p.name} {p.state}" for p in host().plugins())
    compilers = sorted({spec.compiler for spec in device_specs().values()} - {""})
    names = ("kanawa", "jax", "jaxlib", "numpy", *compilers)
    versions = {name: installed_version(name) for name in names}
    flags = sorted({*_FLAGS, *(name for name in os.environ if name.endswith("_INIT_ARGS"))})
    return {
        "host": socket.gethostname(),
        "time": time.time(),
        "skew_seconds": skew_seconds(place),
        "plugins": _digest(states),
        "versions": " ".join(f"{name} {version}" for name, version in versions.items() if version),
        "flags": " ".join(f"{name}={os.environ[name]}" for name in flags if os.environ.get(name)) or "none",
        "python": platform.python_version(),
    }


def compare(records: Mapping[str, Mapping[str, Any]], count: int) -> list[Finding]:
    """Returns how records, by the host that left them, agree."""
    seen = sorted(str(each.get("host")) for each in records.values())
    found = [Finding("ok", "hosts", f"{len(records)} of {count} are here")]
    if len(records) < count:
        fix = "run it on all hosts at once, with a --run folder that all of them see; --wait SECONDS for slow ones"
        message = f"{len(records)} of {count} hosts left a record: {', '.join(seen)}"
        found = [Finding("error", "hosts", message, fix, "the others don't see this folder, or haven't started")]
    for name, meaning in _ALIKE.items():
        values: dict[str, list[str]] = {}
        for each in records.values():
            values.setdefault(str(each.get(name)), []).append(str(each.get("host")))
        message = "; ".join(f"{value} on {_some(sorted(hosts))}" for value, hosts in sorted(values.items()))
        if len(values) < 2:
            message = f"alike: {next(iter(values), 'none')}"
        fix = "install and set the same on every host"
        found.append(judged(len(values) < 2, f"{name} of hosts", message, fix, meaning, "error"))
    skews = {str(each.get("host")): float(each.get("skew_seconds", 0.0)) for each in records.values()}
    apart = max(skews.values(), default=0.0) - min(skews.values(), default=0.0)
    message = f"clocks are at most {apart:.1f} s apart"
    if apart > MOST_SKEW_SECONDS:
        worst = max(skews, key=lambda name: abs(skews[name]))
        message = f"{message}; {worst} is {skews[worst]:+.1f} s off"
    found.append(judged(apart <= MOST_SKEW_SECONDS, "clocks of hosts", message, CLOCK_FIX, CLOCK_MEANING, "error"))
    return found


def _some(hosts: list[str]) -> str:
    return ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")


def _records(place: Path) -> dict[str, dict[str, Any]]:
    """Returns fresh records by the file they came from; one that is torn or of another form is none."""
    records = {}
    for path in place.glob("*.json"):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if time.time() - path.stat().st_mtime < _FRESH_SECONDS and isinstance(content["host"], str):
                records[path.name] = content
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return records


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
