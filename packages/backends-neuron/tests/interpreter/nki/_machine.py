"""What a NeuronCore has and forbids, and how much of it a running kernel has taken."""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

PARTITIONS = 128
SBUF_PARTITION_BYTES = 192 * 1024  # NeuronCore-v2; -v3 has 224 KiB.
PSUM_BANK_BYTES = 2048
PSUM_BANKS = 8
#: Where an engine's access to SBUF or PSUM may begin.
FIRST_PARTITIONS = (0, 32, 64, 96)


class RuleBrokenError(Exception):
    """A kernel did what the hardware can't do, or what would give whatever lay in memory before."""


@dataclass
class Machine:
    """One logical core running one kernel: its programs run one after the other and share HBM outputs."""

    programs: int = 1
    backwards: bool = False
    program: int = 0
    loop_depth: int = 0
    sbuf_bytes: int = 0
    psum_banks: int = 0
    sbuf_peak: int = 0
    psum_peak: int = 0
    #: What the first program allocated in shared HBM, in order, and how many of it this program has met.
    shared: list[Any] = field(default_factory=list)
    met: int = 0

    def take(self, owner: Any, space: str, partition_bytes: int) -> None:
        """Counts `partition_bytes` of a memory as long as `owner` lives; raises if there are not as many."""
        if space == "sbuf":
            self.sbuf_bytes += partition_bytes
            self.sbuf_peak = max(self.sbuf_peak, self.sbuf_bytes)
            weakref.finalize(owner, self._give_sbuf, partition_bytes)
            if self.sbuf_bytes > SBUF_PARTITION_BYTES:
                message = (
                    f"SBUF is full: {self.sbuf_bytes} bytes of a partition are alive, there are {SBUF_PARTITION_BYTES}"
                )
                raise RuleBrokenError(message)
        elif space == "psum":
            # A tile takes a whole bank: what lies beside it there isn't the kernel's to count on.
            self.psum_banks += 1
            self.psum_peak = max(self.psum_peak, self.psum_banks)
            weakref.finalize(owner, self._give_psum)
            if self.psum_banks > PSUM_BANKS:
                message = f"PSUM is full: {self.psum_banks} tiles are alive, there are {PSUM_BANKS} banks"
                raise RuleBrokenError(message)

    def _give_sbuf(self, partition_bytes: int) -> None:
        self.sbuf_bytes -= partition_bytes

    def _give_psum(self) -> None:
        self.psum_banks -= 1


# JAX calls back from several threads: a forward and a gradient may run at a time, each on a machine of its own.
_running = threading.local()


def machine() -> Machine:
    """Returns the machine of the kernel that runs in this thread."""
    here = getattr(_running, "machine", None)
    if here is None:
        message = "no kernel is running: call it through nki.simulate"
        raise RuleBrokenError(message)
    return here


@contextlib.contextmanager
def running(one: Machine) -> Iterator[Machine]:
    """Makes `one` the machine that instructions run on."""
    before = getattr(_running, "machine", None)
    _running.machine = one
    try:
        yield one
    finally:
        _running.machine = before


def require(condition: bool, message: str) -> None:
    """Raises RuleBrokenError with the message unless the condition holds."""
    if not condition:
        raise RuleBrokenError(message)
