"""Trees as flat dictionaries, and the comparison of what is asked with what was saved."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from kanawa_runtime.checkpoint.errors import CheckpointStructureError
from kanawa_runtime.checkpoint.manifest import ArrayEntry


def flatten(tree: Any) -> dict[str, Any]:
    """Returns {"a.b": leaf} for any pytree: dictionary keys and attribute names, joined by dots."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {".".join(_key(key) for key in path): leaf for path, leaf in leaves}


def rebuild(tree: Any, leaves: Mapping[str, Any]) -> Any:
    """Returns `tree` with each leaf replaced by the one of its path."""
    structure = jax.tree.structure(tree)
    # By path, not by position: the store gives leaves back in its own order.
    return jax.tree.unflatten(structure, [leaves[path] for path in flatten(tree)])


def placed(leaves: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns leaves with a sharding: their own, or the only device's. Raises CheckpointStructureError in a gang."""
    return {path: _placed(path, leaf) for path, leaf in leaves.items()}


def _placed(path: str, leaf: Any) -> jax.ShapeDtypeStruct:
    if getattr(leaf, "sharding", None) is not None:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    if jax.process_count() > 1:
        message = f"{path} needs a sharding: several processes restore it together"
        raise CheckpointStructureError(message, (message,))
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def empty_array(leaf: jax.ShapeDtypeStruct) -> jax.Array:
    """Returns the array of a leaf without elements, of which nothing is stored."""
    return jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)


def _key(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def check_savable(item: str, leaves: Mapping[str, Any]) -> None:
    """Raises CheckpointStructureError naming every leaf that is not a plain JAX array."""
    problems = tuple(
        f"{item}: {path} is a {type(leaf).__name__}; only jax.Array of a plain dtype is saved"
        for path, leaf in leaves.items()
        if not isinstance(leaf, jax.Array) or jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    )
    if problems:
        message = "these leaves can't be saved:\n  " + "\n  ".join(problems)
        raise CheckpointStructureError(message, problems)


def check_structure(
    where: str,
    asked: Mapping[str, Mapping[str, Any]],
    saved: Mapping[str, Mapping[str, ArrayEntry]],
) -> None:
    """Raises one CheckpointStructureError with every missing, unexpected or differing leaf of the asked items."""
    problems: list[str] = []
    for item, leaves in asked.items():
        if item not in saved:
            problems.append(f"{item}: the checkpoint has no such item; it has {', '.join(sorted(saved))}")
            continue
        problems.extend(_differences(item, leaves, saved[item]))
    if problems:
        message = (
            f"{where} doesn't fit the arrays asked for:\n  "
            + "\n  ".join(problems)
            + "\nResume with the config of the run that saved it, or start a new run directory."
        )
        raise CheckpointStructureError(message, tuple(problems))


def _differences(item: str, asked: Mapping[str, Any], saved: Mapping[str, ArrayEntry]) -> list[str]:
    problems = [f"{item}: {path} is missing in the checkpoint" for path in asked if path not in saved]
    problems += [f"{item}: {path} is in the checkpoint but was not asked for" for path in saved if path not in asked]
    for path, leaf in asked.items():
        entry = saved.get(path)
        if entry is None:
            continue
        if tuple(leaf.shape) != entry.shape:
            problems.append(f"{item}: {path} has shape {entry.shape} saved, {tuple(leaf.shape)} asked for")
        dtype = jnp.dtype(leaf.dtype).name
        if dtype != entry.dtype:
            problems.append(f"{item}: {path} has dtype {entry.dtype} saved, {dtype} asked for")
    return problems
