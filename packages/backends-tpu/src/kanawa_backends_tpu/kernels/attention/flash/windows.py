"""Which block of an array a step of a kernel's grid sees."""

from dataclasses import dataclass
from typing import Any

from jax.experimental import pallas as pl

from kanawa_backends_tpu.kernels.attention.flash.tiles import Tiles

#: Numbers of each query of each head, [B, H, 1, T].
_OF_QUERIES = ("lse", "delta", "drop_first", "drop_second")
_LANES = 128


@dataclass(frozen=True)
class Windows:
    """Looks blocks up in the prefetched scalars.

    Attributes:
        scalars: their names, in order.
        group: query heads a key head.
        loaded: "q" or "kv", the side whose blocks change from step to step: where a step needs none, "fetched" says
            which one stays.
    """

    tiles: Tiles
    scalars: tuple[str, ...]
    steps: int
    group: int
    loaded: str

    def look_up(self, name: str, index: Any, scalars: tuple[Any, ...]) -> Any:
        """Returns an entry of a table."""
        return scalars[self.scalars.index(name)][index]

    def block(self, side: str, row: Any, step: Any, scalars: tuple[Any, ...]) -> Any:
        """Returns the block of queries ("q") or of keys ("kv")."""
        if side == self.loaded and "fetched" in self.scalars:
            return self.look_up("fetched", row * self.steps + step, scalars)
        return self.look_up(side, step, scalars)

    def operand(self, name: str, shape: tuple[int, ...], backward: bool) -> pl.BlockSpec:
        """Returns an operand's window, for the grid (batch, head, step) or (batch, key head, query head, step)."""
        if name.startswith("bias"):
            return self._bias(name, shape, backward)
        side = "q" if name in ("queries", "dout", *_OF_QUERIES) or name.startswith("q_") else "kv"
        size = self._size(side)

        def at(*index: Any) -> tuple[Any, Any, Any]:
            row, head, step, scalars = self._place(index, backward)
            return row, head if side == "q" else head // self.group, self.block(side, row, step, scalars)

        if len(shape) == 3:  # Positions and segment ids, which all heads share.
            return pl.BlockSpec((None, 1, size), lambda *index: (at(*index)[0], 0, at(*index)[2]))
        if name in _OF_QUERIES:
            return pl.BlockSpec((None, None, 1, size), lambda *index: (*at(*index)[:2], 0, at(*index)[2]))
        return pl.BlockSpec((None, None, size, shape[3]), lambda *index: (*at(*index), 0))

    def _bias(self, name: str, shape: tuple[int, ...], backward: bool) -> pl.BlockSpec:
        """Returns the window of a bias as `additions.bias_arrays` makes it."""
        down, across = ("kv", "q") if backward else ("q", "kv")

        def at(*index: Any) -> tuple[Any, Any, Any, Any]:
            row, head, step, scalars = self._place(index, backward)
            blocks = [self.block(side, row, step, scalars) for side in (down, across)]
            place = row if shape[0] > 1 else 0, head if shape[1] > 1 else 0
            return *place, 0 if name == "bias_across" else blocks[0], 0 if name == "bias_down" else blocks[1]

        height = 1 if name == "bias_across" else self._size(down)
        width = _LANES if name == "bias_down" else self._size(across)
        return pl.BlockSpec((None, None, height, width), at)

    def _place(self, index: tuple[Any, ...], backward: bool) -> tuple[Any, Any, Any, tuple[Any, ...]]:
        """Returns row, query head and step of an index of the grid, and the scalars behind it."""
        if backward:
            row, kv_head, member, step = index[:4]
            return row, kv_head * self.group + member, step, index[4:]
        row, head, step = index[:3]
        return row, head, step, index[3:]

    def _size(self, side: str) -> int:
        return (self.tiles.q if side == "q" else self.tiles.kv).block
