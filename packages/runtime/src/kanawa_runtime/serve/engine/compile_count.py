"""How many programs the compiler has made on one thread: after an engine is ready, there must be no more."""

import threading
from collections import Counter

import jax

#: JAX's own event; its name is not documented, and a test compiles something to see that it is still sent.
_EVENT = "/jax/core/compile/backend_compile_duration"
_counts: Counter[int] = Counter()
_lock = threading.Lock()
_listening = threading.Event()


def _count(event: str, duration_secs: float, **_: str | int) -> None:
    del duration_secs
    if event == _EVENT:
        with _lock:
            _counts[threading.get_ident()] += 1


def listen() -> None:
    """Begins to count, once a process."""
    with _lock:
        if not _listening.is_set():
            jax.monitoring.register_event_duration_secs_listener(_count)
            _listening.set()


def compilations() -> int:
    """Returns how many programs were compiled on the calling thread since `listen`."""
    return _counts[threading.get_ident()]
