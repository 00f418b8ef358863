"""How many cores this process may use: fewer than the machine has under `taskset`, Slurm or a container's quota."""

import math
import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


def cores() -> int:
    """Returns the cores that the process may run on at once, at least one: its affinity, and its groups' quotas.

    A quota of one and a half counts as two. Threads beyond it only take each other's time.
    """
    may = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([may, *(math.ceil(quota) for quota in _quotas())]))


def _quotas() -> list[float]:
    """Returns what each control group of the process, and each above it, lets it use; none where none limits it."""
    try:
        lines = _OWN_GROUP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 has one tree and one file; version 1 a tree a controller, and the quota in two.
        tree = _GROUPS / controllers if controllers else _GROUPS
        group = tree / path.lstrip("/")
        # Within a container the path may be the host's, which isn't mounted: its own group is then the root.
        for folder in (group, *group.parents):
            quota = _quota(folder, ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",))
            quotas += [] if quota is None else [quota]
            if folder == tree:
                break
    return quotas


def _quota(group: Path, names: tuple[str, ...]) -> float | None:
    """Returns microseconds of quota a microsecond of a period; None where the group has none."""
    try:
        words = " ".join((group / name).read_text(encoding="utf-8") for name in names).split()
        quota, period = (float(word) for word in words)
    except (OSError, ValueError):
        # "max", or no such group.
        return None
    return quota / period if quota > 0 and period > 0 else None
