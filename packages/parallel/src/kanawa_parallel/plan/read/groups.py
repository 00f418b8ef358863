"""Which devices talk to each other in a collective: replica groups in each form HLO writes, and their mesh axes."""

import math
import re
from collections.abc import Mapping

import numpy as np

from kanawa_parallel.plan.read.hlo import Instruction

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:,\s*device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))?\s*\{([^}]*)\}")
_PAIRS = re.compile(r"\{(\d+),(\d+)\}")
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
    """Reads `mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}`: groups along the named axes."""
    match = _MESH.match(text)
    if match is None:
        message = f"replica groups {text[:60]!r} have an unknown form"
        raise ValueError(message)
    sizes = {name.strip().strip("'\""): int(size) for name, size in (p.split("=") for p in match[1].split(","))}
    ids = _iota(match[2], match[3]) if match[2] else np.arange(math.prod(sizes.values()))
    grid = ids.reshape(tuple(sizes.values()))
    along = [name.strip().strip("'\"") for name in match[4].split(",") if name.strip()]
    names = list(sizes)
    # Groups differ along the other axes, members along the named ones: those go last.
    order = [names.index(n) for n in names if n not in along] + [names.index(n) for n in along]
    members = math.prod(sizes[name] for name in along)
    return grid.transpose(order).reshape(-1, members)


def _iota(dims: str, order: str | None) -> np.ndarray:
    sizes = _ints(dims)
    grid = np.arange(math.prod(sizes)).reshape(sizes)
    return grid.transpose(_ints(order)).reshape(-1) if order else grid.reshape(-1)


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
