"""Pools with narrow heads, brought to pages of 128 tokens.

XLA puts those dimensions of an array last that fill tiles of 8 by 128 best. Of a pool [P, N, K, D] with D no multiple
of 128 those are the tokens of a page where there are 128 of them, and else the pages themselves (seen for v5p with
libtpu 0.0.52: 8,192 pages are the minor dimension). A page is then one lane of every tile: no copy fetches it alone.
So the pages of the rows' tables are gathered into a pool of the call's own, as the reference does, but no score leaves
the chip. Pages of 128 tokens spare that. 64 rows of 2,048 keys and eight key heads of 64, in pages of 16, take 1,024
MiB beside the pools on v5p; the reference 785 for one token a row, and 18,051 for a mixed batch of 1,024 tokens.

Legend: P pages in the pool, N tokens a page, R table entries a row, K key heads, D width.
"""

import dataclasses

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Operands

from kanawa_backends_tpu.kernels.attention.paged_layout import order_of

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
