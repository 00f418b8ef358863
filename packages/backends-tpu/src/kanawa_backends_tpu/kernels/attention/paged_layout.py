"""How XLA lays out pools of pages on a TPU, and how the paged kernel reads them without a copy.

XLA puts those dimensions last, in tiles of 8 by 128, that fill them best. `PageLayout` has the three orders that follow
(seen in compiled programs for v5p and v6e, jax 0.11.2), their blocks on chip, and the matmuls with one head's keys.

Legend: P pages, N tokens a page, K key heads, D width; C keys of a block, R query rows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

Order = Literal["tokens", "heads", "lanes"]
Dot = Callable[..., jax.Array]

_LANES = 128
_BY_ROWS = (((1,), (1,)), ((), ()))
_BY_COLUMNS = (((1,), (0,)), ((), ()))


def order_of(num_kv_heads: int, head_dim: int, v_head_dim: int) -> Order:
    """Returns what XLA makes the order of a pool [P, N, K, D] in memory."""
    if head_dim % _LANES or v_head_dim % _LANES:
        return "lanes"
    return "tokens" if num_kv_heads in (2, 4) or num_kv_heads % 8 == 0 else "heads"


@dataclasses.dataclass(frozen=True)
class PageLayout:
    """Keys or values of one kind of pool.

    Attributes:
        order: "tokens": [P, N, K, D]; "heads": [P, K, N, D]; "lanes": [P, K, D, N], keys as columns.
        keys: of a block.
        heads: key heads.
    """

    order: Order
    keys: int
    heads: int

    def view(self, pool: jax.Array) -> jax.Array:
        """Returns a pool [P, N, K, D] in its order in memory, so that nothing has to be moved."""
        axes = {"tokens": (0, 1, 2, 3), "heads": (0, 2, 1, 3), "lanes": (0, 2, 3, 1)}[self.order]
        return pool.transpose(axes)

    def buffer_shape(self, width: int) -> tuple[int, ...]:
        """Returns the shape of two blocks."""
        block = {"tokens": (self.keys, self.heads, width), "heads": (self.heads, self.keys, width)}
        return 2, *block.get(self.order, (self.heads, width, self.keys))

    @property
    def token_axis(self) -> int:
        """Which axis of a block, or of a part of one, counts tokens."""
        return {"tokens": 0, "heads": 1, "lanes": 2}[self.order]

    def part(self, ref: Any, index: Any, start: Any, size: int) -> Any:
        """Returns the reference to some tokens of one page, or of one block of a buffer."""
        tokens = pl.ds(start, size)
        if self.order == "tokens":
            return ref.at[index, tokens]
        return ref.at[index, :, tokens] if self.order == "heads" else ref.at[index, :, :, tokens]

    def scores(self, dot: Dot, q: jax.Array, k: jax.Array) -> jax.Array:
        """Returns q [R, D] times one head's keys: [R, C]."""
        return dot(q, k, _BY_COLUMNS if self.order == "lanes" else _BY_ROWS)

    def weigh(self, dot: Dot, weights: jax.Array, v: jax.Array) -> jax.Array:
        """Returns weights [R, C] times one head's values: [R, D]."""
        return dot(weights, v, _BY_ROWS if self.order == "lanes" else _BY_COLUMNS)

    def all_heads(self, buffer: Any, slot: Any, dtype: Any) -> jax.Array:
        """Returns a block in the order of tokens as rows [C x K, D]."""
        rows = buffer.at[slot].reshape(self.keys * self.heads, buffer.shape[-1])
        block: jax.Array = rows[...].astype(dtype)
        return block

    def by_head(self, buffer: Any, slot: Any, dtype: Any) -> Callable[[int], jax.Array]:
        """Returns a function from a head to its part of a block: [C, D], or [D, C] where keys are columns."""
        ref = buffer.at[slot]
        if self.order != "tokens":
            return lambda head: ref[head].astype(dtype)
        heads, width = self.heads, buffer.shape[-1]
        packing = 4 // jnp.dtype(buffer.dtype).itemsize
        if packing == 1:
            rows = ref.reshape(self.keys * heads, width)
            return lambda head: rows[pl.ds(head, self.keys, stride=heads), :].astype(dtype)
        # Two heads share each 32-bit word, and only whole words can be read with a stride.
        words = ref.bitcast(jnp.uint32).reshape(self.keys * heads // packing, width)
        pairs: dict[int, jax.Array] = {}

        def one(head: int) -> jax.Array:
            pair, half = divmod(head, packing)
            if pair not in pairs:
                pairs.clear()
                pairs[pair] = words[pl.ds(pair, self.keys, stride=heads // packing), :]
            # A bfloat16 is the upper half of a float32.
            upper = pairs[pair] << 16 if half == 0 else pairs[pair] & jnp.uint32(0xFFFF0000)
            return jax.lax.bitcast_convert_type(upper, jnp.float32).astype(dtype)

        return one
