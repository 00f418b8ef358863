"""The processor that this process runs on: its name and instruction sets, and how many cores the process may use."""

import ctypes
import dataclasses
import functools
import math
import os
import platform
import sys
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
#: x86-64 Linux: the system call arch_prctl, its code that requests a part of the processor's state, and AMX's tiles.
_ARCH_PRCTL, _REQUEST_STATE, _TILE_STATE = 158, 0x1023, 18


@dataclasses.dataclass(frozen=True)
class Processor:
    """A processor.

    Attributes:
        name: as its maker writes it, else the architecture.
        features: instruction sets by Linux's names, such as "avx512f"; empty where the system doesn't list them.
    """

    name: str
    features: frozenset[str] = frozenset()

    def has(self, *features: str) -> bool:
        """Returns whether the processor has all of the features."""
        return self.features.issuperset(features)

    @property
    def has_bf16_units(self) -> bool:
        """Whether the processor multiplies bfloat16 natively."""
        return self.has("avx512_bf16") or self.has("amx_bf16")

    @property
    def vector_registers(self) -> tuple[int, int] | None:
        """The floats of a vector, and the vectors in a row of a register tile; None for an unknown processor."""
        if self.has("avx512f"):
            return 16, 4
        if self.has("avx2", "fma"):
            return 8, 2
        return (4, 4) if self.has("asimd") else None


@functools.cache
def processor() -> Processor:
    """Returns this machine's processor."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        # Every 64-bit Arm processor has NEON, which Linux calls asimd.
        arm = platform.machine().lower() in ("arm64", "aarch64")
        return Processor(platform.processor() or platform.machine(), frozenset({"asimd"} if arm else ()))
    return parse_cpuinfo(text)


def parse_cpuinfo(text: str) -> Processor:
    """Returns the first processor that a text such as /proc/cpuinfo's describes."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and value.strip():
            fields.setdefault(key.strip().lower(), value.strip())
    # "features" on Arm, where no line has a model's name on many machines.
    name = fields.get("model name") or fields.get("hardware") or platform.machine()
    return Processor(name, frozenset((fields.get("flags") or fields.get("features") or "").split()))


@functools.cache
def has_amx_tiles() -> bool:
    """Returns whether the processor has AMX's bfloat16 tiles and the system lets this process use them."""
    needed = ("amx_tile", "amx_bf16", "avx512f", "avx512bw", "avx512vl")
    if sys.platform != "linux" or platform.machine() != "x86_64" or not processor().has(*needed):
        return False
    # Linux kills a process that uses tiles without this request. Forked children inherit the permission.
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_STATE, _TILE_STATE) == 0)


@functools.cache
def has_bf16_pairs() -> bool:
    """Returns whether bfloat16 is multiplied by AVX-512's dot products of pairs: where there are no tiles."""
    return processor().has("avx512f", "avx512_bf16") and not has_amx_tiles()


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
