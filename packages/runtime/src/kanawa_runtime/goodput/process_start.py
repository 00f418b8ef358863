"""When this process was started, which is seconds before its first line of ours ran."""

import os
import time
from pathlib import Path

_IMPORTED = time.time()
#: Of /proc/PID/stat behind the command's name: the start in ticks since boot.
_START = 19


def process_started() -> float:
    """Returns seconds since the epoch; where the system doesn't tell, when this module was imported."""
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        ticks = int(fields[_START])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED
    return time.time() - age
