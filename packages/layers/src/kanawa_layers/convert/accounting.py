"""Tensors of a folder and of a model: every one accounted for, and converted one at a time."""

import difflib
import fnmatch
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import kanawa as kn
import numpy as np
from kanawa.arrays.tree import flatten_paths
from kanawa.foreign import ForeignTable, ForeignTensor
from kanawa.module import Module

from kanawa_layers.convert.errors import TensorMismatchError
from kanawa_layers.convert.safetensors_file import DTYPES, Entry

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


#: Above this many pairs of missing and left-over tensors, near names take too long.
_MOST_COMPARED = 40_000
_PIECE_BYTES = 2**24


def account(subject: str, table: ForeignTable, held: Mapping[str, Entry]) -> dict[str, str]:
    """Returns the folder's name of every tensor of the table; raises TensorMismatchError naming all that don't fit."""
    names = _with_prefix(table, held)
    expected = table.tensors
    missing = [name for name in (*expected, *table.copies) if name not in names]
    extra = [name for name in names if name not in expected and not _may_be_there(table, name)]
    problems = _named(missing, extra, table, {name: held[names[name]] for name in extra})
    for name in expected:
        if name in names:
            problems += _misfits(name, expected[name].shape, held[names[name]])
    # Both copies of a tied tensor must be equal, or one of them would be lost silently.
    for name, original in (*table.repeats.items(), *table.copies.items()):
        if name in names and original in names and not _equal(held[names[name]], held[names[original]]):
            problems.append(f"{name}: is tied to {original} in this model, but has other values")
    if problems:
        raise TensorMismatchError(subject, problems)
    return {name: names[name] for name in expected}


def _with_prefix(table: ForeignTable, held: Iterable[str]) -> dict[str, str]:
    """Returns {name as in the table: the folder's name}; a file either uses the optional prefix or leaves it out."""
    prefix, names = table.optional_prefix, list(held)
    for other, ours in table.aliases.items():
        if any(name.startswith(other) for name in names):
            return {ours + name.removeprefix(other) if name.startswith(other) else name: name for name in names}
    if not prefix or any(name.startswith(prefix) for name in names):
        return {name: name for name in names}
    return {name if name in table.tensors or name in table.repeats else prefix + name: name for name in names}


def _may_be_there(table: ForeignTable, name: str) -> bool:
    return (
        name in table.repeats
        or name in table.copies
        or any(fnmatch.fnmatchcase(name, pattern) for pattern in table.ignored)
    )


def _named(missing: list[str], extra: list[str], table: ForeignTable, held: Mapping[str, Entry]) -> list[str]:
    """Returns a line for each missing and each left-over tensor; a pair that looks like a renaming shares one."""
    problems: list[str] = []
    free = dict.fromkeys(extra)
    # For a folder of another model, all are missing and all left over.
    compares = len(missing) * len(free) <= _MOST_COMPARED
    for name in missing:
        shape = table.tensors[table.copies.get(name, name)].shape
        alike = [e for e in free if held[e].shape == shape] if compares else []
        near = difflib.get_close_matches(name, alike, n=1, cutoff=0.6)
        if near:
            del free[near[0]]
            problems.append(f"{name}: missing; {near[0]} of the same shape is left over: was it renamed?")
        else:
            problems.append(f"{name}: missing, expected {list(shape)}")
    problems += [f"{name}: left over ({held[name].dtype} {list(held[name].shape)})" for name in free]
    return problems


def _misfits(name: str, shape: tuple[int, ...], entry: Entry) -> list[str]:
    problems = []
    if entry.shape != shape:
        hint = ""
        if entry.shape == shape[::-1]:
            hint = "; it is transposed"
        elif math.prod(entry.shape) == math.prod(shape):
            hint = "; it has as many elements"
        problems.append(f"{name}: has shape {list(entry.shape)}, expected {list(shape)}{hint}")
    if entry.dtype not in ("F32", "BF16", "F16"):
        problems.append(
            f"{name}: has dtype {entry.dtype} ({DTYPES[entry.dtype].name}), expected F32, BF16 or F16; "
            "dequantise the checkpoint first"
        )
    return problems


def _equal(first: Entry, second: Entry) -> bool:
    """Returns whether both hold the same bytes, a piece at a time: a vocabulary's table may be gigabytes."""
    if (first.dtype, first.stop - first.start) != (second.dtype, second.stop - second.start):
        return False
    ours, theirs = first.read_bytes(), second.read_bytes()
    starts = range(0, len(ours), _PIECE_BYTES)
    return all(np.array_equal(ours[at : at + _PIECE_BYTES], theirs[at : at + _PIECE_BYTES]) for at in starts)
