"""Pictures that keep their proportions: which patches are a picture's, and positions interpolated to its grid.

A row's patches are a picture's, then padding (`ImageBatch.grids`), so that one program takes pictures of all shapes.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def patches_of(grids: Int[Array, "B 2"], count: int) -> Bool[Array, "B T"]:
    """Returns which of `count` patches are a picture's."""
    return jnp.arange(count)[None] < jnp.prod(grids, axis=1)[:, None]


def at_places(positions: Float[Array, "1 T E"], grids: Int[Array, "B 2"], prefix: int) -> Float[Array, "B T E"]:
    """Returns `prefix` positions as they are, and those of a square grid interpolated bilinearly to each picture's.

    Patches lie at their middles, as in `torch.nn.functional.interpolate` without aligned corners: a picture of the
    square's own grid has its positions. Computed in fp32; the result has the dtype of `positions`.
    """
    table = positions[0, prefix:].astype(jnp.float32)
    side, count = math.isqrt(table.shape[0]), table.shape[0]
    rows, columns = jnp.maximum(grids[:, :1], 1), jnp.maximum(grids[:, 1:], 1)
    places = jnp.arange(count)[None]
    down, across = _hats(places // columns, rows, side), _hats(places % columns, columns, side)
    weights = (down[..., :, None] * across[..., None, :]).reshape(*down.shape[:2], count)
    made = jnp.einsum("bts,se->bte", weights, table, precision="highest").astype(positions.dtype)
    kept = jnp.broadcast_to(positions[:, :prefix], (grids.shape[0], prefix, positions.shape[-1]))
    return jnp.concatenate([kept, made], axis=1)


def _hats(at: Int[Array, "B T"], length: Int[Array, "B 1"], side: int) -> Float[Array, "B T side"]:
    """Returns the weights of `side` places for the middle of patch `at` of `length`."""
    middle = (at.astype(jnp.float32) + 0.5) * (side / length.astype(jnp.float32)) - 0.5
    middle = jnp.clip(middle, 0.0, side - 1.0)
    return jnp.maximum(0.0, 1.0 - jnp.abs(middle[..., None] - jnp.arange(side, dtype=jnp.float32)[None, None]))
