"""How large a tile each kernel takes, by chip, head width and bytes of a number; warps and stages with it."""

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp
from kanawa.kernels.attention.problem import AttentionProblem

if TYPE_CHECKING:
    from kanawa.plugins import DeviceSpec

#: What the matrix units take at least.
SMALLEST = 16


@dataclasses.dataclass(frozen=True)
class Size:
    """One kernel's tile: queries by keys, warps of a program, and how many tiles are loaded ahead."""

    queries: int
    keys: int
    warps: int
    stages: int


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The tiles of the three kernels; a bias's gradient takes the queries' own."""

    forward: Size
    queries: Size
    keys: Size


#: Widest head of a row, for numbers of two bytes.
_HALF = {
    64: Sizes(Size(128, 64, 4, 3), Size(128, 64, 8, 2), Size(64, 128, 8, 2)),
    128: Sizes(Size(128, 64, 8, 3), Size(128, 64, 8, 2), Size(64, 128, 8, 2)),
    256: Sizes(Size(128, 32, 8, 2), Size(64, 32, 8, 2), Size(32, 64, 8, 2)),
}
#: Products of fp32 don't run on the matrix units, and every thread holds its share of both factors.
_SINGLE = {
    64: Sizes(Size(64, 32, 4, 1), Size(32, 32, 4, 1), Size(32, 32, 4, 1)),
    128: Sizes(Size(32, 32, 4, 1), Size(32, 32, 4, 1), Size(32, 32, 4, 1)),
    256: Sizes(Size(32, 32, 8, 1), Size(16, 32, 8, 1), Size(32, 16, 8, 1)),
}
WIDEST = max(_HALF)


def sizes(problem: AttentionProblem, device: "DeviceSpec | None" = None) -> Sizes:
    """Returns the tiles for a problem, no larger than its rows."""
    width = max(problem.head_dim, problem.v_head_dim)
    table = _HALF if jnp.dtype(problem.dtype).itemsize == 2 else _SINGLE
    chosen = table[min(row for row in table if row >= width)]
    fields = (f.name for f in dataclasses.fields(chosen))
    return Sizes(**{name: _fitted(getattr(chosen, name), problem) for name in fields})


def _fitted(size: Size, problem: AttentionProblem) -> Size:
    return dataclasses.replace(
        size,
        queries=min(size.queries, _power(problem.q_length)),
        keys=min(size.keys, _power(problem.kv_length)),
    )


def _power(length: int) -> int:
    """Returns the smallest power of two that holds `length`, and no less than the matrix units take."""
    return max(SMALLEST, 1 << (length - 1).bit_length())
