"""Which block of an array a step of a kernel's grid sees."""

from dataclasses import dataclass
from typing import Any

from jax.experimental import pallas as pl

from kanawa_backends_tpu.kernels.attention.flash.tiles import Tiles


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
        side = "q" if name in ("queries", "dout", "lse", "delta") or name.startswith("q_") else "kv"
        size = (self.tiles.q if side == "q" else self.tiles.kv).block

        def at(*index: Any) -> tuple[Any, Any, Any]:
            count = 4 if backward else 3
            (row, *heads, step), scalars = index[:count], index[count:]
            if backward:
                head = heads[0] * self.group + heads[1] if side == "q" else heads[0]
            else:
                head = heads[0] if side == "q" else heads[0] // self.group
            return row, head, self.block(side, row, step, scalars)

        if len(shape) == 3:  # Positions and segment ids, which all heads share.
            return pl.BlockSpec((None, 1, size), lambda *index: (at(*index)[0], 0, at(*index)[2]))
        if name in ("lse", "delta"):
            return pl.BlockSpec((None, None, 1, size), lambda *index: (*at(*index)[:2], 0, at(*index)[2]))
        return pl.BlockSpec((None, None, size, shape[3]), lambda *index: (*at(*index), 0))
