"""Packed rows as cuDNN takes them: where each document starts and how long it is, found in the program.

Legend: B rows, T tokens, M documents a row at most, H heads.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class SegmentRuns(NamedTuple):
    """The runs of equal ids in each row; id 0 is padding and belongs to none.

    Attributes:
        lengths: int32 [B, M], -1 where a row has fewer runs.
        starts: int32 [B, M + 1], -1 likewise, the last one always.
        run: int32 [B, T], which run a token belongs to, counted over all rows; B * M for padding.
        place: int32 [B, T], a token's place in its run.
        fits: bool, whether the runs say all that the ids say: no row has more than M, and no id comes back after
            another one.
    """

    lengths: jax.Array
    starts: jax.Array
    run: jax.Array
    place: jax.Array
    fits: jax.Array

    @classmethod
    def of_ids(cls, ids: jax.Array, most: int) -> "SegmentRuns":
        """Returns the runs of ids [B, T], `most` a row."""
        rows, length = ids.shape
        index = jnp.arange(length, dtype=jnp.int32)[None]
        real = ids != 0
        begins = real & (ids != jnp.pad(ids[:, :-1], ((0, 0), (1, 0))))
        local = jnp.cumsum(begins.astype(jnp.int32), axis=1) - 1
        count = jnp.sum(begins, axis=1, dtype=jnp.int32)
        # An id that is no larger than one before it may be that one's: its tokens would belong together.
        highest = jax.lax.cummax(jnp.where(real, ids, 0), axis=1)
        returns = begins & (ids <= jnp.pad(highest[:, :-1], ((0, 0), (1, 0))))
        number = jnp.arange(most, dtype=jnp.int32)[None]
        mine = local[:, None, :] == number[:, :, None]
        used = number < count[:, None]
        lengths = jnp.sum(mine & real[:, None, :], axis=2, dtype=jnp.int32)
        starts = jnp.sum(jnp.where(mine & begins[:, None, :], index[:, None, :], 0), axis=2, dtype=jnp.int32)
        start_of_token = jax.lax.cummax(jnp.where(begins, index, 0), axis=1)
        before = jnp.cumsum(count) - count
        return cls(
            lengths=jnp.where(used, lengths, -1),
            starts=jnp.pad(jnp.where(used, starts, -1), ((0, 0), (0, 1)), constant_values=-1),
            run=jnp.where(real, before[:, None] + local, rows * most),
            place=index - start_of_token,
            fits=jnp.all(count <= most) & ~jnp.any(returns),
        )

    def to_rows(self, per_run: jax.Array) -> jax.Array:
        """Returns numbers of runs [B * M, H, T] as numbers of rows [B, H, T], -inf for padding."""
        runs = per_run.shape[0]
        heads = jnp.arange(per_run.shape[1])[None, :, None]
        numbers = per_run[jnp.minimum(self.run, runs - 1)[:, None], heads, self.place[:, None]]
        return jnp.where((self.run < runs)[:, None], numbers, -jnp.inf)

    def to_runs(self, per_row: jax.Array) -> jax.Array:
        """Returns numbers of rows [B, H, T] as numbers of runs [B * M, H, T], 0 past a run's end."""
        rows, heads, length = per_row.shape
        runs = jnp.zeros((rows * self.lengths.shape[1], length, heads), per_row.dtype)
        # Padding's run lies past the last one and is dropped.
        filled = runs.at[self.run, self.place].set(per_row.swapaxes(1, 2), mode="drop")
        return filled.swapaxes(1, 2)
