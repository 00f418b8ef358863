"""XLA's options for a process that a test starts: this session's, but for the number of devices."""

import os

_DEVICES = "--xla_force_host_platform_device_count"


def xla_flags(devices: int | None = None) -> str:
    """Returns what XLA_FLAGS is to be for a process with so many CPU devices; by default with one, as a user's has."""
    kept = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(_DEVICES)]
    return " ".join([*kept, *([f"{_DEVICES}={devices}"] if devices else [])])
