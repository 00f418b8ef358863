"""Cutting attention into blocks of queries and keys, and finding those that a mask empties."""

import dataclasses

import jax
import numpy as np

from kanawa.kernels.attention.operands import kv_positions, q_positions
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Operands

_QUERY_AXIS = {"q": 1, "q_positions": 1, "q_segment_ids": 1, "dout": 1, "out": 1}
_KEY_AXIS = {"k": 1, "v": 1, "kv_positions": 1, "kv_segment_ids": 1}


def block_size(length: int, largest: int, smallest: int) -> int | None:
    """Returns the largest divisor of `length` in [smallest, largest], or None."""
    sizes = range(min(largest, length), smallest - 1, -1)
    return next((size for size in sizes if length % size == 0), None)


def block_problem(problem: AttentionProblem, queries: int, keys: int) -> AttentionProblem:
    """Returns the problem of one block: positions are explicit, sinks left to the merging."""
    bias = problem.bias_shape
    if bias is not None:
        # A dimension of 1 broadcasts: min keeps it, whatever the block's size.
        bias = (*bias[:2], min(bias[2], queries), min(bias[3], keys))
    return dataclasses.replace(
        problem,
        q_length=queries,
        kv_length=keys,
        bias_shape=bias,
        has_sinks=False,
        has_q_positions=True,
        has_kv_positions=True,
    )


def with_positions(problem: AttentionProblem, operands: Operands) -> dict[str, jax.Array]:
    """Returns the operands with both positions explicit and without sinks."""
    explicit = {name: x for name, x in operands.items() if name != "sinks"}
    explicit["q_positions"] = q_positions(problem, operands)
    explicit["kv_positions"] = kv_positions(problem, operands)
    return explicit


def query_block(operands: Operands, index: jax.Array, size: int) -> dict[str, jax.Array]:
    """Returns the operands with query block `index` cut out."""
    return _cut(operands, _QUERY_AXIS, 2, index, size)


def key_block(operands: Operands, index: jax.Array, size: int) -> dict[str, jax.Array]:
    """Returns the operands with key block `index` cut out."""
    return _cut(operands, _KEY_AXIS, 3, index, size)


def add_block(total: jax.Array, block: jax.Array, axis: int, start: jax.Array) -> jax.Array:
    """Returns `total` with `block` added to it from `start` on along `axis`."""
    old = jax.lax.dynamic_slice_in_dim(total, start, block.shape[axis], axis, allow_negative_indices=False)
    return jax.lax.dynamic_update_slice_in_dim(total, old + block, start, axis, allow_negative_indices=False)


def key_block_ranges(problem: AttentionProblem, queries: int, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (first, end) key block of each query block: what lies outside is masked for certain.

    All blocks, where positions are only known when running.
    """
    blocks, key_blocks = problem.q_length // queries, problem.kv_length // keys
    first = np.zeros(blocks, np.int32)
    end = np.full(blocks, key_blocks, np.int32)
    mask = problem.mask
    # Predicates and `any_of` aren't looked at: they can only hide more, and a block that is all masked costs time, not
    # exactness. A prefix shows keys that the rest of the mask hides, so with one nothing is certain.
    if not problem.has_default_positions or mask.prefix:
        return first, end
    # First and last query of each block; what its mask leaves is within [bottom of the first, top of the last].
    low = np.arange(blocks) * queries
    high = low + queries - 1
    bottom, top = np.zeros_like(low), np.full_like(high, problem.kv_length - 1)
    if mask.causal:
        top = np.minimum(top, high)
    if mask.window is not None:
        left, right = mask.window
        bottom = bottom if left is None else np.maximum(bottom, low - left)
        top = top if right is None else np.minimum(top, high + right)
    if mask.chunk is not None:
        bottom = np.maximum(bottom, low // mask.chunk * mask.chunk)
        top = np.minimum(top, (high // mask.chunk + 1) * mask.chunk - 1)
    first = np.clip(bottom // keys, 0, key_blocks)
    end = np.clip(top // keys + 1, 0, key_blocks)
    return first.astype(np.int32), end.astype(np.int32)


def _cut(operands: Operands, axes: dict[str, int], bias_axis: int, index: jax.Array, size: int) -> dict[str, jax.Array]:
    cut = dict(operands)
    for name, x in operands.items():
        axis = bias_axis if name == "bias" else axes.get(name)
        # Operands without a block axis (prefix lengths) and a bias that broadcasts go to every block whole.
        if axis is not None and (name != "bias" or x.shape[axis] != 1):
            cut[name] = jax.lax.dynamic_slice_in_dim(x, size * index, size, axis, allow_negative_indices=False)
    return cut
