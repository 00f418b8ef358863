"""Matching the tensors that a model expects with those of a folder; every one must be accounted for."""

import difflib
import fnmatch
import math
from collections.abc import Iterable, Mapping

import numpy as np
from kanawa.foreign import ForeignTable

from kanawa_layers.convert.errors import TensorMismatchError
from kanawa_layers.convert.safetensors_file import DTYPES, Entry

#: Above this many pairs of missing and left-over tensors, near names take too long.
_MOST_COMPARED = 40_000
_PIECE_BYTES = 2**24


def account(subject: str, table: ForeignTable, held: Mapping[str, Entry]) -> dict[str, str]:
    """Returns the folder's name of every tensor of the table; raises TensorMismatchError naming all that don't fit."""
    names = _with_prefix(table, held)
    expected = table.tensors
    missing = [name for name in expected if name not in names]
    extra = [name for name in names if name not in expected and not _may_be_there(table, name)]
    problems = _named(missing, extra, table, {name: held[names[name]] for name in extra})
    for name in expected:
        if name in names:
            problems += _misfits(name, expected[name].shape, held[names[name]])
    # Both copies of a tied tensor must be equal, or one of them would be lost silently.
    for name, original in table.repeats.items():
        if name in names and original in names and not _equal(held[names[name]], held[names[original]]):
            problems.append(f"{name}: is tied to {original} in this model, but has other values")
    if problems:
        raise TensorMismatchError(subject, problems)
    return {name: names[name] for name in expected}


def _with_prefix(table: ForeignTable, held: Iterable[str]) -> dict[str, str]:
    """Returns {name with the optional prefix: the folder's name}; a file either uses the prefix or leaves it out."""
    prefix, names = table.optional_prefix, list(held)
    if not prefix or any(name.startswith(prefix) for name in names):
        return {name: name for name in names}
    return {name if name in table.tensors or name in table.repeats else prefix + name: name for name in names}


def _may_be_there(table: ForeignTable, name: str) -> bool:
    return name in table.repeats or any(fnmatch.fnmatchcase(name, pattern) for pattern in table.ignored)


def _named(missing: list[str], extra: list[str], table: ForeignTable, held: Mapping[str, Entry]) -> list[str]:
    """Returns a line for each missing and each left-over tensor; a pair that looks like a renaming shares one."""
    problems: list[str] = []
    free = dict.fromkeys(extra)
    # For a folder of another model, all are missing and all left over.
    compares = len(missing) * len(free) <= _MOST_COMPARED
    for name in missing:
        shape = table.tensors[name].shape
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
