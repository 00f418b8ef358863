"""token_exchange.any.padded: an all-to-all of equal, padded buffers, which every backend can do.

XLA's `ragged_all_to_all` would send no padding, but doesn't exist on its CPU backend. Rows that a peer can't have
sent cost bandwidth here: a buffer has room for min(rows, output_rows) from each pair of shards.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from kanawa.kernels.operation import Operands, UniversalKernel
from kanawa.kernels.token_exchange.problem import TokenExchangeProblem


class PaddedTokenExchange(UniversalKernel):
    """Supports every problem. Linear in the rows: JAX differentiates it into the way back."""

    name: ClassVar[str] = "token_exchange.any.padded"
    operation: ClassVar[str] = "token_exchange"
    autodiff: ClassVar[bool] = True

    def forward(self, problem: TokenExchangeProblem, operands: Operands) -> tuple[tuple[jax.Array, jax.Array], None]:
        """Returns ((received [output_rows, width], sizes by source [shards]), None)."""
        rows, sizes = operands["rows"], operands["send_sizes"]
        room = min(problem.rows, problem.output_rows)
        # Exclusive: where each destination's rows start. [shards, room, D] after the vmap, one buffer for each.
        starts = jnp.cumsum(sizes) - sizes
        buffers = jax.vmap(lambda start, size: _take(rows, start, size, room))(starts, sizes)
        received = sizes
        if problem.shards > 1:
            axes = problem.axis_names
            buffers = jax.lax.all_to_all(buffers, axes, 0, 0, tiled=True)
            received = jax.lax.all_to_all(sizes, axes, 0, 0, tiled=True)
        offsets = operands.get("receive_offsets")
        if offsets is None:
            offsets = jnp.cumsum(received) - received
        return (_place(buffers, offsets, received, problem.output_rows), received), None


def _take(rows: jax.Array, start: jax.Array, size: jax.Array, room: int) -> jax.Array:
    """Returns `size` rows from `start` on, in a buffer of `room` rows."""
    index = jnp.arange(room, dtype=start.dtype)
    taken = jnp.take(rows, start + index, axis=0, mode="fill", fill_value=0)
    return jnp.where((index < size)[:, None], taken, jnp.zeros((), rows.dtype))


def _place(buffers: jax.Array, offsets: jax.Array, sizes: jax.Array, output_rows: int) -> jax.Array:
    """Returns rows [shards, room, width] at their offsets; what doesn't fit is dropped."""
    shards, room, width = buffers.shape
    index = jnp.arange(room, dtype=offsets.dtype)[None]
    # `output_rows` is one past the end, which mode="drop" leaves out: so go padding and what doesn't fit.
    target = jnp.where(index < sizes[:, None], offsets[:, None] + index, output_rows)
    out = jnp.zeros((output_rows, width), buffers.dtype)
    flat = buffers.reshape(shards * room, width)
    # Added, not set: places are distinct, so it is the same, and the transpose of a scatter-add is one gather.
    return out.at[target.reshape(-1)].add(flat, mode="drop")
