"""Conversion between foreign tensors and our stacked arrays, one tensor at a time."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import kanawa as kn
import numpy as np
from kanawa.arrays.tree import flatten_paths
from kanawa.foreign import ForeignTable, ForeignTensor
from kanawa.module import Module

Arrays = dict[str, np.ndarray]


def gather(model: Module, table: ForeignTable, read: Callable[[str], np.ndarray]) -> tuple[Arrays, Arrays]:
    """Returns parameters and state, by path, in the model's dtypes; `read` returns a tensor by name.

    bfloat16 and float16 become float32 without loss. State without a foreign name has its initial value.
    """
    wanted = {"params": flatten_paths(kn.param_specs(model)), "state": flatten_paths(kn.state_specs(model))}
    held = {item: {path: np.empty(s.shape, s.dtype) for path, s in specs.items()} for item, specs in wanted.items()}
    held["state"].update(_unnamed_state(model, table, wanted["state"]))
    for name, tensor in table.tensors.items():
        for part, piece in zip(tensor.parts, tensor.split(read(name)), strict=True):
            # Assigned into our own array, which casts and copies at once: a tensor is never held twice.
            held[part.item][part.path][part.where or ...] = piece
    return held["params"], held["state"]


def _unnamed_state(model: Module, table: ForeignTable, specs: Mapping[str, Any]) -> Arrays:
    named = {part.path for tensor in table.tensors.values() for part in tensor.parts}
    rest = [path for path in specs if path not in named]
    if not rest:
        return {}
    import jax

    initial = flatten_paths(kn.initial_state(model, jax.random.key(0)))
    return {path: np.array(initial[path]) for path in rest}


def foreign_value(tensor: ForeignTensor, params: Mapping[str, Any], state: Mapping[str, Any], dtype: Any) -> np.ndarray:
    """Returns one foreign tensor of our arrays, rounded to `dtype`."""
    held = {"params": params, "state": state}
    pieces = (np.asarray(held[p.item][p.path])[p.where or ...] for p in tensor.parts)
    return tensor.join(pieces).astype(dtype, copy=False)


def describe(table: ForeignTable, dtypes: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yields a line of a dry run for each tensor: name, dtype, shape, and our parameter."""
    for name, tensor in table.tensors.items():
        parts = [f"{part.path}{_index_text(part.where)}" for part in tensor.parts]
        yield {"tensor": name, "dtype": dtypes[name], "shape": list(tensor.shape), "parts": parts}


def _index_text(where: tuple[int | slice, ...]) -> str:
    if not where:
        return ""
    return f"[{', '.join(str(w) if isinstance(w, int) else _slice_text(w) for w in where)}]"


def _slice_text(cut: slice) -> str:
    return f"{'' if cut.start is None else cut.start}:{'' if cut.stop is None else cut.stop}"
