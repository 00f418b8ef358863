"""JAX's persistent compilation cache, set aside for a while. JAX decides once a process whether it uses one and where,
so that a change of its settings counts only after a reset, on the way in and on the way back.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache


@contextmanager
def without_cache() -> Iterator[None]:
    """Compiles anew inside the block, even what the cache holds: an executable from there leaves no dump."""
    with _settings(jax_enable_compilation_cache=False):
        yield


@contextmanager
def cache_in(folder: str) -> Iterator[None]:
    """Keeps every program compiled inside the block in `folder`, however quickly it was compiled."""
    least = {"jax_persistent_cache_min_compile_time_secs": 0.0}
    with _settings(jax_compilation_cache_dir=folder, jax_enable_compilation_cache=True, **least):
        yield


@contextmanager
def _settings(**values: Any) -> Iterator[None]:
    before = {name: jax.config.values[name] for name in values}
    _change(values)
    try:
        yield
    finally:
        _change(before)


def _change(values: dict[str, Any]) -> None:
    for name, value in values.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
