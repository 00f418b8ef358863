"""The processor that this process runs on: its name and instruction sets, read once."""

import ctypes
import dataclasses
import functools
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
