"""The tuning table: which kernel, run with what, was fastest for a problem on a device, as measured there.

`kanawa kernels EXPERIMENT --bench` writes it, later runs on such a device read it. JSON, one entry a problem. An entry
counts for the versions it was measured with alone: another compiler or another kernel may be faster elsewhere.
"""

import dataclasses
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kanawa.arrays.plan import KernelUse
from kanawa.errors import UsageError
from kanawa.guarded_read import guarded_json
from kanawa.kernels.operation import Tuning
from kanawa.local_path import local_path
from kanawa.plugins.devices import device_spec_of_kind

#: Overrides the table's path.
VARIABLE = "KANAWA_TUNING"
#: The version of the file's format that is read and written.
FORMAT = 1
_MOST_BYTES = 64 * 2**20


class TuningTableError(UsageError):
    """A file isn't a tuning table of this version, or can't be one."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """The fastest kernel for one problem on one device.

    Attributes:
        device: as `device_key` returns it.
        versions: distribution to version, of JAX and of all that offered a kernel that was measured.
        measured: what was measured, as `kanawa kernels --bench --json` lists it.
    """

    device: str
    operation: str
    problem: str
    kernel: str
    tuning: Tuning
    versions: Mapping[str, str]
    measured: tuple[Mapping[str, Any], ...] = ()
    date: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        """What there is one entry for."""
        return self.device, self.operation, self.problem

    @property
    def is_current(self) -> bool:
        """Whether all that was measured is installed in the same versions."""
        return all(_installed(name) == measured for name, measured in self.versions.items())

    def as_json(self) -> dict[str, Any]:
        """Returns the entry as the file holds it."""
        return {**dataclasses.asdict(self), "tuning": dict(self.tuning), "measured": [dict(m) for m in self.measured]}


def default_path() -> Path:
    """Returns the path of this user's table, which may not exist."""
    named = os.environ.get(VARIABLE)
    if named:
        return local_path(named, VARIABLE)
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return local_path(Path(data) / "kanawa" / "tuning.json")


def device_key(kind: str) -> str:
    """Returns a device's key in the table: its kind, and where the kind names no model, model and cores."""
    spec = device_spec_of_kind(kind)
    return f"{kind}, {spec.model} x {os.cpu_count()}" if spec and spec.model else kind


def read_table(path: Path) -> tuple[Entry, ...]:
    """Returns a table's entries; none where there is no file. Raises TuningTableError, or as `guarded_json` does."""
    try:
        content = guarded_json(path, most=_MOST_BYTES)
    # A file where a folder should be holds no table either.
    except (FileNotFoundError, NotADirectoryError):
        return ()
    try:
        if content["format"] != FORMAT:
            message = f"format {content['format']!r}, and this version reads {FORMAT}"
            raise ValueError(message)
        return tuple(_entry(record) for record in content["entries"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = (
            f"{path} isn't a tuning table ({type(error).__name__}: {error}); delete it, and measure again with "
            "`kanawa kernels EXPERIMENT --bench`"
        )
        raise TuningTableError(message) from error


def measured_uses(path: Path, kind: str) -> tuple[KernelUse, ...]:
    """Returns what a table says of a kind of device, as a KernelPolicy takes it."""
    device = device_key(kind)
    entries = (entry for entry in read_table(path) if entry.device == device and entry.is_current)
    return tuple((entry.operation, entry.problem, entry.kernel, entry.tuning) for entry in entries)


def _entry(record: Mapping[str, Any]) -> Entry:
    texts = {name: record[name] for name in ("device", "operation", "problem", "kernel", "date")}
    wrong = next((name for name, text in texts.items() if not isinstance(text, str)), None)
    if wrong is not None:
        message = f"{wrong} is {texts[wrong]!r}, expected text"
        raise ValueError(message)
    tuning = tuple(sorted((str(name), value) for name, value in record["tuning"].items()))
    for name, value in tuning:
        # A bool is an int to Python, and a size of 0 a division by zero in some kernel long after.
        if type(value) is not int or value < 1:
            message = f"the tuning of {record['kernel']} has {name} = {value!r}, expected a whole number from 1 on"
            raise ValueError(message)
    return Entry(
        tuning=tuning,
        versions={str(name): str(measured) for name, measured in record["versions"].items()},
        measured=tuple(dict(one) for one in record["measured"]),
        **texts,
    )


def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
