"""How many cores this process may use: fewer than the machine has under `taskset`, Slurm or a container's quota."""

import math
import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


def cores() -> int:
    """Returns the cores that the process may use at once, at least one, by its affinity and its control groups' quotas.

    A quota of 1.5 cores counts as two.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([usable, *(math.ceil(quota) for quota in _quotas())]))


def _quotas() -> list[float]:
    """Returns the quotas, in cores, of the process's control groups and of their parents."""
    try:
        lines = _OWN_GROUP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 has one tree and one file; version 1 one tree per controller, and the quota in two files.
        tree = _GROUPS / controllers if controllers else _GROUPS
        group = tree / path.lstrip("/")
        # In a container the path may be the host's, which isn't mounted: its own group is then the root.
        for folder in (group, *group.parents):
            quota = _quota(folder, ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",))
            quotas += [] if quota is None else [quota]
            if folder == tree:
                break
    return quotas


def _quota(group: Path, names: tuple[str, ...]) -> float | None:
    """Returns a group's quota in cores; None if it has none."""
    try:
        words = " ".join((group / name).read_text(encoding="utf-8") for name in names).split()
        quota, period = (float(word) for word in words)
    except (OSError, ValueError):
        # "max", or no such group.
        return None
    return quota / period if quota > 0 and period > 0 else None
