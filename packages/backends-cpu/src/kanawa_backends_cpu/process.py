"""How a process that computes on the CPU is prepared, allocator included, and what its compiled programs depend on."""

import ctypes
import os
import platform
import re
import sys
import warnings
from importlib.util import find_spec

from kanawa_backends_cpu.processor import processor

#: Parameters of mallopt(3), and their values.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_NEVER, _NONE, _ONE = -1, 0, 1
#: Threads of a server that allocate at once: those that compile, or XLA's and the engine's.
_SEVERAL = 8
_PAD_BYTES = 64 * 2**20
#: If the user has set one of these, nothing is changed.
_OWN_SETTINGS = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def keep_freed_memory(*, in_threads: bool = False) -> bool:
    """Makes glibc reuse freed memory instead of returning it to the system; returns whether it does.

    Otherwise each step's gigabytes of temporaries are mapped, zeroed page by page and unmapped: a sixth to a quarter of
    a small model's training step. Call it before JAX starts. Nothing changes where JAX uses an accelerator.

    `in_threads` is for a server, whose threads allocate small blocks all the time and would wait for the lock of a
    single arena: compiling an engine took 22 s instead of 12, and its bfloat16 steps half as long again.
    """
    if not (_is_glibc() and jax_uses_the_cpu()) or any(os.environ.get(name) for name in _OWN_SETTINGS):
        return False
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # One arena, because large blocks of any other are mapped and unmapped whatever the limits are. Serving has none.
    arenas = _SEVERAL if in_threads else _ONE
    settings = ((_ARENA_MAX, arenas), (_MMAP_MAX, _NONE), (_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _PAD_BYTES))
    return all([mallopt(parameter, value) == 1 for parameter, value in settings])


def _is_glibc() -> bool:
    if sys.platform != "linux":
        return False
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except ValueError:  # another libc doesn't know the name
        return False


def jax_uses_the_cpu() -> bool:
    """Returns whether JAX will run on the CPU: as configured, or because no accelerator's package is installed."""
    configured = os.environ.get("JAX_PLATFORMS") or os.environ.get("JAX_PLATFORM_NAME")
    if configured:
        return configured.split(",")[0].strip() == "cpu"
    return not any(find_spec(name) for name in ("jax_plugins", "libtpu", "libneuronxla"))


#: jaxlib can't serialize a program that calls its oneDNN, as serving has, and training without llvmlite.
_NOT_STORED = "Error writing persistent compilation cache entry.*bad_alloc"


#: Threads of XLA's pool for each device that shares this process. By default there is one, and each waits in a
#: collective: what the last device still has to compute then finds none, and XLA ends the process after 40 s.
_THREADS_A_DEVICE = 4
#: Plans are compiled for more devices than this machine could run: those get a thread each.
_MOST_THREADS = 128


def provide_threads(devices: int) -> None:
    """Has XLA start with enough threads for so many CPU devices of this process, unless the user set NPROC."""
    if devices > 1:
        enough = min(_THREADS_A_DEVICE * devices, _MOST_THREADS)
        os.environ.setdefault("NPROC", str(max(os.cpu_count() or 1, devices, enough)))


def _devices_asked_for() -> int:
    forced = re.search(r"xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(forced[1] if forced else os.environ.get("JAX_NUM_CPU_DEVICES") or 1)


def prepare_process(purpose: str) -> None:
    """Sets the allocator and XLA's threads, and drops the warning about programs that the compile cache can't store."""
    keep_freed_memory(in_threads=purpose == "serve")
    provide_threads(_devices_asked_for())
    warnings.filterwarnings("ignore", message=_NOT_STORED, category=UserWarning)


def compile_cache_key() -> list[str]:
    """Returns the architecture and its instruction sets, which compiled CPU programs need."""
    return [platform.machine(), *sorted(processor().features)]
