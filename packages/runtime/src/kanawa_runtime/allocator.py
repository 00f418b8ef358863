"""How a process on a CPU keeps freed memory: XLA allocates a step's temporaries anew each time it runs."""

import ctypes
import os
import sys
from importlib.util import find_spec

#: Parameters of mallopt(3), and what they are set to.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_NEVER, _NONE, _ONE = -1, 0, 1
#: Threads of a server that allocate at once: those that compile, or XLA's and the engine's.
_SEVERAL = 8
_PAD_BYTES = 64 * 2**20
#: Somebody who set one of these has other plans.
_OWN_SETTINGS = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def keep_freed_memory(*, in_threads: bool = False) -> bool:
    """Has glibc keep what is freed instead of giving it back; returns whether it does. Call it before JAX starts.

    Else each step's gigabytes of temporaries are mapped, zeroed page by page and unmapped: a sixth to a quarter of a
    small model's training step. Where an accelerator does the work, its host's memory is left alone.

    `in_threads` is for a process whose threads allocate small blocks all the time, as a server's do: they compile many
    programs at once, and each of a step's hundreds of products makes its plan anew. They would wait for one arena's
    lock: compiling an engine took 22 s in place of 12, and its bfloat16 steps half as long again.
    """
    if not (_is_glibc() and on_a_cpu()) or any(os.environ.get(name) for name in _OWN_SETTINGS):
        return False
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # One arena, because large blocks of any other are mapped and unmapped whatever the limits say. Serving has none.
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


def on_a_cpu() -> bool:
    """Returns whether JAX will run on the CPU: as asked for, or because no accelerator's package is installed."""
    asked = os.environ.get("JAX_PLATFORMS") or os.environ.get("JAX_PLATFORM_NAME")
    if asked:
        return asked.split(",")[0].strip() == "cpu"
    return not any(find_spec(name) for name in ("jax_plugins", "libtpu", "libneuronxla"))
