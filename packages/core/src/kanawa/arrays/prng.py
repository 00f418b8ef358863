"""Random keys by name: folding a fixed 32-bit hash makes a key depend on the path, never on the order of calls."""

import functools
import hashlib

import jax


@functools.cache
def name_hash(name: str) -> int:
    """Returns the fixed 32-bit hash of a name: the first four bytes of its SHA-256, big-endian."""
    # Python's own hash of a string differs between processes.
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def fold_name(key: jax.Array, name: str) -> jax.Array:
    """Returns `key` folded with the hash of `name`; works on typed and traced keys."""
    return jax.random.fold_in(key, name_hash(name))


def step_key(seed: int, step: jax.Array | int) -> jax.Array:
    """Returns the key of one training step: `fold_in(key(seed), step)`, threefry on every platform."""
    # Named, not the default: a process may set another generator, and a run must not change with that.
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), step)
