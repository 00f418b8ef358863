"""Which devices talk to each other in a collective: replica groups in each form HLO writes, and their mesh axes."""

import itertools
import math
import re
from collections.abc import Mapping

import numpy as np

from kanawa_parallel.plan.read.hlo import Instruction

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:,\s*device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))?\s*\{([^}]*)\}")
_PAIRS = re.compile(r"\{(\d+),(\d+)\}")
#: An axis, or with its size before and its own size a part of one.
_PART = re.compile(r"['\"]?(\w+)['\"]?(?::\((\d+)\)(\d+))?")
_LIST = re.compile(r"\{([\d,]+)\}")


def replica_groups(instruction: Instruction, devices: int) -> np.ndarray:
    """Returns partition ids [groups, members]; everybody in one group where the text names none."""
    text = instruction.attributes
    # A send has its pairs among its frontend attributes, maybe as a string.
    pairs = re.search(r'source_target_pairs="?\{(.*?\}|)\}', text)
    if pairs:
        return np.array([[int(a), int(b)] for a, b in _PAIRS.findall(pairs[1])], int).reshape(-1, 2)
    at = text.find("replica_groups=")
    if at < 0:
        return np.arange(devices)[None]
    rest = text[at + len("replica_groups=") :]
    if rest.startswith("mesh"):
        return _from_mesh(rest)
    if rest.startswith("["):
        return _from_iota(rest)
    if rest.startswith("{}"):  # everybody; a later attribute's braces would be read as groups
        return np.arange(devices)[None]
    listed = [np.fromstring(group, int, sep=",") for group in _LIST.findall(rest[: rest.find("}}") + 2])]
    return np.array(listed)


def mesh_axes(groups: np.ndarray, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the mesh axes along which a group's members differ; partition ids run over the mesh in row order."""
    shape = tuple(mesh.values())
    if not shape or groups.size == 0 or groups.max() >= math.prod(shape):
        return ()
    coordinates = np.stack(np.unravel_index(groups, shape), -1)
    differs = (coordinates != coordinates[:, :1]).any(axis=(0, 1))
    return tuple(name for name, differ in zip(mesh, differs, strict=True) if differ)


def _from_iota(text: str) -> np.ndarray:
    match = _IOTA.match(text)
    if match is None:
        message = f"replica groups {text[:60]!r} have an unknown form"
        raise ValueError(message)
    # [2,4]<=[4,2]T(1,0): 0 to 7 as [4, 2], transposed, then read off as two groups of four.
    return _iota(match[2], match[3]).reshape(_ints(match[1]))


def _from_mesh(text: str) -> np.ndarray:
    """Reads `mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}`: groups along the named axes.

    An axis may be named in part: `'a':(2)2` is the part of size 2 with 2 before it, the middle one of [2, 2, rest].
    """
    match = _MESH.match(text)
    if match is None:
        message = f"replica groups {text[:60]!r} have an unknown form"
        raise ValueError(message)
    sizes = {name.strip().strip("'\""): int(size) for name, size in (p.split("=") for p in match[1].split(","))}
    ids = _iota(match[2], match[3]) if match[2] else np.arange(math.prod(sizes.values()))
    along = [_PART.match(part.strip()) for part in match[4].split(",") if part.strip()]
    parts = [(part[1], int(part[2] or 1), int(part[3] or sizes[part[1]])) for part in along if part is not None]
    # Every axis in the pieces between which the named parts begin and end.
    pieces: dict[str, list[int]] = {}
    for name, size in sizes.items():
        cuts = sorted({1, size, *(cut for n, before, k in parts if n == name for cut in (before, before * k))})
        pieces[name] = [after // before for before, after in itertools.pairwise(cuts)]
    places = [(name, math.prod(cut[:i])) for name, cut in pieces.items() for i in range(len(cut))]
    grid = ids.reshape([piece for cut in pieces.values() for piece in cut])
    inside = [
        i for name, before, k in parts for i, (n, at) in enumerate(places) if n == name and before <= at < before * k
    ]
    # Groups differ along the other pieces, members along the named ones: those go last.
    order = [i for i in range(len(places)) if i not in inside] + inside
    return grid.transpose(order).reshape(-1, math.prod(k for _, _, k in parts))


def _iota(dims: str, order: str | None) -> np.ndarray:
    sizes = _ints(dims)
    grid = np.arange(math.prod(sizes)).reshape(sizes)
    return grid.transpose(_ints(order)).reshape(-1) if order else grid.reshape(-1)


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
