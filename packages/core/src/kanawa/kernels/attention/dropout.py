"""Dropout of attention weights, reproducible bit by bit: which weight is dropped is a function of its place alone.

Each weight has 32 random bits, hashed from the key, the query's and the head's number in the whole batch and the key's
place in its row. No block size, no order of loops and no split over a mesh changes them, forward and backward make them
anew, and every kernel can make the same ones, from `row_words` (outside) and `keep_mask` (inside: integer operations on
arrays of any shape).
"""

import jax
import jax.numpy as jnp

from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Operands

#: 2^32 over the golden ratio, odd: multiples of it are spread evenly over 32 bits.
_GOLDEN = 0x9E3779B9


def dropout_ids(problem: AttentionProblem) -> dict[str, jax.Array]:
    """Returns the numbers of queries, uint32 [B, T], and heads, uint32 [H], in the whole batch.

    Operands, so that a shard that holds some of them knows which.
    """
    # Counted by the program: an array made here would be a constant in it, 4 bytes for every token of the batch.
    queries = jnp.arange(problem.batch * problem.q_length, dtype=jnp.uint32)
    return {
        "dropout_queries": queries.reshape(problem.batch, problem.q_length),
        "dropout_heads": jnp.arange(problem.num_heads, dtype=jnp.uint32),
    }


def row_words(operands: Operands) -> tuple[jax.Array, jax.Array]:
    """Returns two words for each row of weights, uint32 [B, H, T]: of the key, the head's and the query's number."""
    key = operands["dropout_key"]
    heads, queries = operands["dropout_heads"], operands["dropout_queries"]
    first = _mix(_mix(heads ^ key[0])[None, :, None] ^ queries[:, None, :])
    # The second word isn't a function of the first: rows that meet in one differ in the other.
    second = _mix(_mix(queries ^ key[1])[:, None, :] + heads[None, :, None] * jnp.uint32(_GOLDEN))
    return first, second


def keep_mask(first: jax.Array, second: jax.Array, keys: jax.Array, rate: float) -> jax.Array:
    """Returns which weights stay, bool: of rows with these two words, and keys with these places (uint32)."""
    bits = keys * jnp.uint32(_GOLDEN) + first
    bits = (bits ^ (bits >> jnp.uint32(16))) * jnp.uint32(0x21F0AAAD)
    bits = bits ^ (bits >> jnp.uint32(15)) ^ second
    bits = bits * jnp.uint32(0x735A2D97)
    out: jax.Array = (bits ^ (bits >> jnp.uint32(15))) >= jnp.uint32(threshold(rate))
    return out


def threshold(rate: float) -> int:
    """Returns the least of 2^32 values that the bits of a weight that stays have."""
    return min(round(rate * 2**32), 2**32 - 1)


def weight_factors(problem: AttentionProblem, operands: Operands, dtype: jnp.dtype) -> jax.Array:
    """Returns what each weight is multiplied with, 0 or 1 / (1 - rate), shaped like scores; all keys of the rows."""
    from kanawa.kernels.attention.scores import bias_to_scores

    first, second = (word[..., None] for word in row_words(operands))
    keys = jnp.arange(problem.kv_length, dtype=jnp.uint32)[None, None, None]
    stays = keep_mask(first, second, keys, problem.dropout_rate)
    factor = jnp.asarray(1.0 / (1.0 - problem.dropout_rate), dtype)
    return bias_to_scores(jnp.where(stays, factor, jnp.zeros((), dtype)), problem)


def _mix(x: jax.Array) -> jax.Array:
    """Returns 32 bits of which each depends on each of x's: multiplications and shifts, a bijection."""
    x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> jnp.uint32(15))) * jnp.uint32(0x735A2D97)
    out: jax.Array = x ^ (x >> jnp.uint32(15))
    return out
