"""What one device holds of a program's arguments: exact, from their shapes and shardings, by path."""

import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh
from kanawa.plugins.devices import OWN

#: First names of paths, as the parts of a training state are called, to what a report calls them.
_KINDS = {"params": "parameters", "opt": "optimizer", "state": "state", "step": "state", "caches": "caches"}


def argument_bytes(function: Callable[..., Any], abstract_args: tuple[Any, ...]) -> dict[str, int]:
    """Returns bytes on one device by argument path, such as "params.stack.layer.attention.query.weight".

    A record's fields stand for themselves, such as a training state's "params"; else the argument's name comes first.
    """
    names = list(inspect.signature(function).parameters)
    sizes: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(abstract_args):
        record = len(path) > 1 and isinstance(path[1], jax.tree_util.GetAttrKey)
        parts = [_key(part) for part in path[1:]]
        name = ".".join(parts if record else [names[path[0].idx], *parts])
        sizes[name] = sizes.get(name, 0) + local_bytes(leaf)
    return sizes


def local_bytes(leaf: Any) -> int:
    """Returns the bytes one device holds of an abstract array; host memory counts nothing."""
    sharding = getattr(leaf, "sharding", None)
    if getattr(sharding, "memory_kind", None) in ("pinned_host", "unpinned_host") and _has_own_memory(sharding):
        return 0
    shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
    # In bits: int4 packs two in a byte.
    bits: int = math.prod(shape) * jax.dtypes.itemsize_bits(leaf.dtype)
    return bits // 8


def bytes_by_kind(arguments: Mapping[str, int]) -> dict[str, int]:
    """Returns bytes of parameters, optimizer, state and inputs."""
    total: Counter[str] = Counter()
    for path, size in arguments.items():
        total[_KINDS.get(path.partition(".")[0], "inputs")] += size
    return dict(total)


def bytes_by_module(arguments: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Returns {config path of the module: {kind: bytes}} of parameters, optimizer arrays and state.

    An optimizer's flat names are "transform/parameter path"; an array belongs to the parameter it ends with.
    """
    trained = {path.partition(".")[2] for path in arguments if path.startswith("params.")}
    modules: dict[str, Counter[str]] = {}
    for path, size in arguments.items():
        first, _, rest = path.partition(".")
        kind = _KINDS.get(first)
        if kind in (None, "caches") or not rest:
            continue
        owner = rest.rpartition("/")[2]
        # Counters and schedules of the optimizer end with no parameter's path: they are the learner's own.
        module = f"model.{owner}".rpartition(".")[0] if kind != "optimizer" or owner in trained else "learner"
        modules.setdefault(module, Counter())[kind] += size
    return {module: dict(kinds) for module, kinds in sorted(modules.items())}


def _key(part: Any) -> str:
    for attribute in ("name", "key", "idx"):
        if hasattr(part, attribute):
            return str(getattr(part, attribute))
    return str(part)


def _has_own_memory(sharding: Any) -> bool:
    """Returns whether the devices' host memory is another than their own."""
    if isinstance(getattr(sharding, "mesh", None), AbstractMesh):
        return True
    # The process's own devices name host memory kinds too, but those are the memory that they compute in.
    device = next(iter(getattr(sharding, "device_set", ())), None)
    return getattr(device, "platform", "") != OWN
