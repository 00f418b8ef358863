"""Optimizer state as a flat dictionary: "adam/mu/stack.layer.attention.q.weight", "adam/count"; and where it is stored.

optax stores tuples of named tuples. In a checkpoint their positions would be names, and adding a
transform would rename everything after it; a path by transform, field and parameter stays the same.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from kanawa.arrays.plan import current_plan
from kanawa.errors import KanawaError

#: Memory kinds of shardings; platforms without pinned host memory refuse it when placing or compiling.
MEMORIES = ("device", "pinned_host")


class OptimizerStateError(KanawaError):
    """An optimizer's state doesn't fit the optimizer."""


def to_flat(state: Any) -> dict[str, jax.Array]:
    """Returns the arrays of an optax state by path.

    A chain's transforms are named by `optax.named_chain`.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    flat = {"/".join(_name(key) for key in path): leaf for path, leaf in leaves}
    # A checkpoint is keyed by these: a collision would drop one of the two without a word.
    if len(flat) != len(leaves):
        message = "two arrays of the optimizer's state share a path: give each transform its own name"
        raise OptimizerStateError(message)
    return flat


def from_flat(like: Any, flat: Mapping[str, jax.Array]) -> Any:
    """Returns the optax state shaped like `like`.

    Raises OptimizerStateError for missing or unexpected paths.
    """
    expected = to_flat(like)
    missing, unexpected = (
        sorted(expected.keys() - flat.keys()),
        sorted(flat.keys() - expected.keys()),
    )
    if missing or unexpected:
        message = (
            "the optimizer's state doesn't fit the optimizer:\n"
            f"  missing: {', '.join(missing) or 'nothing'}\n"
            f"  unexpected: {', '.join(unexpected) or 'nothing'}"
        )
        raise OptimizerStateError(message)
    # In the order of the leaves of `like`, whatever order the checkpoint has.
    return jax.tree.unflatten(jax.tree.structure(like), [flat[path] for path in expected])


def _name(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def parameter_of(path: str) -> str:
    """Returns the parameter that a state path ends with: "a.b" of "adam/mu/a.b"."""
    return path.rpartition("/")[2]


def follows(shape: tuple[int, ...], param: tuple[int, ...]) -> bool:
    """Returns whether each dimension of a state array belongs to its parameter's dimension of the same number.

    Sizes may differ: 1 where the state averages, another where it holds a matrix of one side, or a number per block.
    """
    return len(shape) == len(param)


def state_sharding(shape: tuple[int, ...], param: jax.ShapeDtypeStruct, whole: Sharding | None) -> Sharding | None:
    """Returns the sharding of a parameter's state array: the parameter's own, in the dimensions that it divides.

    `whole` is that of an array which every device holds; it is for state that doesn't follow its parameter.
    """
    placed: Sharding | None = param.sharding
    if shape == param.shape:
        return placed
    if not isinstance(placed, NamedSharding) or not follows(shape, param.shape):
        return whole
    # A PartitionSpec may be shorter than the array: the dimensions it leaves out are whole.
    entries = (*placed.spec, *(None for _ in range(len(shape) - len(placed.spec))))
    sizes = placed.mesh.shape
    spec = (entry if size % _num_parts(entry, sizes) == 0 else None for entry, size in zip(entries, shape, strict=True))
    return NamedSharding(placed.mesh, PartitionSpec(*spec), memory_kind=placed.memory_kind)


def _num_parts(entry: Any, sizes: Mapping[str, int]) -> int:
    """Returns into how many parts an entry of a PartitionSpec cuts a dimension."""
    names = () if entry is None else (entry,) if isinstance(entry, str) else entry
    return math.prod(sizes[name] for name in names)


def stored_in(leaf: jax.ShapeDtypeStruct, memory: str) -> jax.ShapeDtypeStruct:
    """Returns the array's abstract form in `memory`; scalars and arrays without a mesh stay on the device."""
    if memory == "device" or not leaf.shape or not isinstance(leaf.sharding, NamedSharding):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding.with_memory_kind(memory))


def on_device(state: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns optimizer state in device memory; the step's output shardings move it back."""
    if current_plan().optimizer_memory == "device":
        return dict(state)
    # Scalars (counts) are never moved: a transfer would cost more than it saves.
    return {name: jax.device_put(x, jax.memory.Space.Device) if x.ndim else x for name, x in state.items()}
