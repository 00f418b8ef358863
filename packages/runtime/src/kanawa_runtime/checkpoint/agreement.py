"""Small decisions that all processes of a run must take alike."""

from typing import Any

import jax
import numpy as np


def is_primary() -> bool:
    """Whether this process writes the shared files."""
    return jax.process_index() == 0


def agreed_steps(steps: list[int], limit: int = 64) -> list[int]:
    """Returns the primary process's last `limit` steps on every process. All processes call."""
    if jax.process_count() == 1:
        return steps
    from jax.experimental import multihost_utils

    return [int(s) for s in multihost_utils.broadcast_one_to_all(_padded(steps, limit)) if s >= 0]


def all_agree(ok: bool) -> bool:
    """Whether every process passes True. All processes call."""
    if jax.process_count() == 1:
        return ok
    from jax.experimental import multihost_utils

    return bool(np.all(multihost_utils.process_allgather(np.asarray(ok))))


def shared_text(value: str) -> str:
    """Returns the primary process's text, which is not empty, on every process. All processes call."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    data = np.frombuffer(value.encode(), np.uint8)
    # One shape in all processes, though their own texts may differ in length.
    size = of_primary(len(data))
    return bytes(multihost_utils.broadcast_one_to_all(np.resize(data, size))).decode()


def common_steps(steps: list[int], limit: int = 64) -> list[int]:
    """Returns those of the last `limit` steps that every process has. All processes call."""
    if jax.process_count() == 1:
        return steps
    from jax.experimental import multihost_utils

    gathered = multihost_utils.process_allgather(_padded(steps, limit))
    return sorted(set.intersection(*({int(s) for s in row if s >= 0} for row in gathered)))


def _padded(steps: list[int], limit: int) -> np.ndarray:
    # What is exchanged has one shape in all processes.
    recent = steps[-limit:]
    return np.array(recent + [-1] * (limit - len(recent)), np.int32)


def same_everywhere(digest: bytes) -> bool:
    """Whether every process passes the same eight bytes. All processes call."""
    if jax.process_count() == 1:
        return True
    from jax.experimental import multihost_utils

    gathered = multihost_utils.process_allgather(np.frombuffer(digest[:8], np.uint32))
    return bool(np.all(gathered == gathered[0]))


def of_primary(number: int) -> int:
    """Returns the primary process's number on every process. All processes call."""
    if jax.process_count() == 1:
        return number
    from jax.experimental import multihost_utils

    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def gathered(key: str, text: str, timeout_seconds: float) -> list[str]:
    """Returns what every process passes under a key used once, by process; safe from any thread. All processes call.

    Raises RuntimeError where one doesn't call in time. Collectives on devices would meet those of the training thread.
    """
    client = _client()
    if client is None:
        return [text]
    limit = int(timeout_seconds * 1000)
    client.key_value_set(f"{key}/{jax.process_index()}", text)
    return [client.blocking_key_value_get(f"{key}/{index}", limit) for index in range(jax.process_count())]


def forget(key: str) -> None:
    """Removes what was exchanged under a key, which the service would keep for ever; the primary process calls."""
    client = _client()
    if client is not None:
        client.key_value_delete(f"{key}/")


def _client() -> Any:
    """Returns the coordination service's client, None in a run of one process."""
    if jax.process_count() == 1:
        return None
    # jax exposes no public key-value store (as of 0.11); orbax reaches it the same way.
    from jax._src import distributed

    return distributed.global_state.client
