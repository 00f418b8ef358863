"""JAX's coordination service aborts a process from C++ when a peer is lost: seen in time, it is an ordinary end.

No Python runs in an abort: jaxlib can't convert its status for a callback (`std::bad_cast`, jaxlib 0.10), and Python's
own handlers run after it. So SIGABRT is answered by libc's `sleep`, which takes the signal's number, 6, as seconds,
and a thread looks for one that has the signal blocked, as a thread has while it answers it.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_LOOK_SECONDS = 1.0
_TASKS = Path("/proc/self/task")
_ABORTING = 1 << (signal.SIGABRT - 1)


def watch_for_aborts(then: Callable[[], None]) -> None:
    """Calls `then`, which should end the process, when a thread is about to abort it; does nothing but on Linux.

    Where `then` can't run, say because a thread keeps Python's lock, the abort happens six seconds late.
    """
    if not sys.platform.startswith("linux") or not _TASKS.is_dir():
        return
    if aborting_threads():
        # Whoever started this process blocked the signal, and its threads inherit that: nothing can be told from it.
        return
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))

    def watch() -> None:
        before: set[str] = set()
        # Twice, so that nothing that passes is taken for it.
        while not (before & (now := aborting_threads())):
            before = now
            time.sleep(_LOOK_SECONDS)
        then()

    threading.Thread(target=watch, name="aborts", daemon=True).start()


def aborting_threads() -> set[str]:
    """Returns the threads of this process that are answering SIGABRT."""
    try:
        tasks = os.listdir(_TASKS)
    except OSError:  # too many open files: the next look may do
        return set()
    return {task for task in tasks if _is_answering(_blocked(task))}


def _is_answering(mask: int) -> bool:
    # A thread that starts another one has all signals blocked for a moment, not this one alone.
    another = 1 << (signal.SIGUSR1 - 1)
    return bool(mask & _ABORTING) and not mask & another


def _blocked(task: str) -> int:
    """Returns a thread's mask of blocked signals; 0 for one that has ended."""
    try:
        status = (_TASKS / task / "status").read_bytes()
    except OSError:
        return 0
    mask = status.partition(b"SigBlk:")[2].split(maxsplit=1)
    return int(mask[0], 16) if mask else 0
