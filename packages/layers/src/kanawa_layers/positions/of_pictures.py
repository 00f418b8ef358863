"""Where the tokens of pictures are: the rest of a picture, and rows and columns (M-RoPE).

Legend: B rows, T tokens. Functions take `xp`, numpy or jax.numpy: a server computes a prompt's on the host.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def rest_of_picture(is_picture: Bool[Array, "B T"], positions: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Returns how many tokens of its picture come after each token, 0 for text.

    A picture is a run of picture tokens whose positions go up by one; another sequence of a packed row ends it.
    """
    length = is_picture.shape[1]
    index = jnp.arange(length, dtype=jnp.int32)[None]
    goes_on = is_picture[:, :-1] & is_picture[:, 1:] & (positions[:, 1:] == positions[:, :-1] + 1)
    goes_on = jnp.pad(goes_on, ((0, 0), (0, 1)))
    ends = jax.lax.cummin(jnp.where(goes_on, length, index), axis=1, reverse=True)
    return jnp.where(is_picture, ends - index, 0).astype(jnp.int32)


def grid_coordinates(is_picture: Any, positions: Any, grid: tuple[int, int], xp: Any) -> Any:
    """Returns time, row and column of each token [B, T, 3] (Wang et al. 2024, arXiv:2409.12191, section 2.1).

    `positions` are those in the token's sequence. A text's token has one number for all three, and that after a picture
    of `grid` tokens, which begins at s, s + max(grid); the picture's are s, s + row and s + column.
    """
    size, (_, columns) = math.prod(grid), grid
    ones = is_picture.astype(xp.int32)
    before = xp.cumsum(ones, axis=1) - ones
    index = xp.arange(is_picture.shape[1], dtype=xp.int32)[None]
    at_start = xp.take_along_axis(before, xp.clip(index - positions, 0, None), axis=1)
    before = before - at_start
    place = xp.where(is_picture, before % size, 0)
    start = positions - place - before // size * (size - max(grid))
    return xp.stack([start, start + place // columns, start + place % columns], axis=-1).astype(xp.int32)
