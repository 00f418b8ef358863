"""How XLA lays out pools of pages on a TPU, and how the paged kernel reads them without a copy, or with one.

XLA puts those dimensions last, in tiles of 8 by 128, that fill them best. `PageLayout` has the three orders that follow
(seen in compiled programs for v5p and v6e, jax 0.11.2), their blocks on chip, and the matmuls with one head's keys.

Of a pool [P, N, K, D] with D no multiple of 128, last are the tokens of a page where there are 128 of them, and else
the pages themselves (v5p, libtpu 0.0.52: 8,192 pages). A page is then one lane of every tile: no copy fetches it alone.
So the pages of the rows' tables are gathered into a pool of the call's own, as the reference does, but no score leaves
the chip. Pages of 128 tokens spare that. 64 rows of 2,048 keys and eight key heads of 64, in pages of 16, take 1,024
MiB beside the pools on v5p; the reference 785 for one token a row, and 18,051 for a mixed batch of 1,024 tokens.

Legend: P pages, N tokens a page, R table entries a row, K key heads, D width; C keys of a block, R query rows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Operands

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


_TOKENS = 128


def fitting(problem: AttentionProblem) -> AttentionProblem:
    """Returns the problem with pages of 128 tokens, or rows of whole ones, where heads are narrow; else as it is."""
    size = problem.page_size
    if order_of(problem.num_kv_heads, problem.head_dim, problem.v_head_dim) != "lanes":
        return problem
    length = -(-problem.kv_length // _TOKENS) * _TOKENS
    if size is None:
        return dataclasses.replace(problem, kv_length=length)
    if _TOKENS % size:
        return problem
    return dataclasses.replace(problem, kv_length=length, page_size=_TOKENS)


def price(problem: AttentionProblem) -> str:
    """Returns what bringing a problem's pages to 128 tokens costs, for the user to read; empty where it isn't done."""
    if fitting(problem) == problem:
        return ""
    if problem.page_size is None:
        return f"rows of {problem.kv_length} keys are copied to whole multiples of 128; take such a kv_length"
    return (
        f"pages of {problem.page_size} tokens with heads {problem.head_dim} and {problem.v_head_dim} wide lie spread "
        f"over the pool, and each call copies it; take pages of 128 (page_size=128)"
    )


def in_fitting_pages(problem: AttentionProblem, operands: Operands) -> Operands:
    """Returns the operands of the problem that `fitting` makes of this one."""
    fitted = fitting(problem)
    if fitted == problem:
        return operands
    if problem.page_size is None:
        rest = ((0, 0), (0, fitted.kv_length - problem.kv_length), (0, 0), (0, 0))
        return {**operands, **{name: jnp.pad(operands[name], rest) for name in ("k", "v")}}
    table = jnp.clip(operands["page_table"].astype(jnp.int32), 0, operands["k"].shape[0] - 1)
    entries = fitted.kv_length // problem.page_size
    # Behind the last entry any page will do: no row is that long.
    table = jnp.pad(table, ((0, 0), (0, entries - table.shape[1])))
    pages = (table.shape[0], fitted.kv_length // _TOKENS)
    gathered = {name: _gathered(operands[name], table) for name in ("k", "v")}
    own = jnp.arange(pages[0] * pages[1], dtype=jnp.int32).reshape(pages)
    return {**operands, **gathered, "page_table": own}


def _gathered(pool: jax.Array, table: jax.Array) -> jax.Array:
    """Returns the pages of all rows, in order, as pages of 128 tokens: [rows * R * N / 128, 128, K, D]."""
    return jnp.asarray(pool)[table.reshape(-1)].reshape(-1, _TOKENS, *pool.shape[2:])
