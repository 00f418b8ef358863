"""A mask split in what a kernel takes natively and a dense rest, as an array or in the bias.

Shapes: B rows (or 1, which broadcasts), H heads, T queries, S keys.
"""

import dataclasses
from collections.abc import Collection

import jax
import jax.numpy as jnp

from kanawa.kernels.accumulate import wide
from kanawa.kernels.attention.operands import mask_array, q_positions
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.attention.scores import MASKED
from kanawa.kernels.masks import MaskSpec
from kanawa.kernels.operation import Operands


def split_mask(problem: AttentionProblem, native: Collection[str]) -> tuple[AttentionProblem, MaskSpec]:
    """Returns the problem with the part of its mask that `native` names (`MaskSpec.split`), and the rest."""
    mine, rest = problem.mask.split(native)
    return dataclasses.replace(problem, mask=mine), rest


def rest_array(
    problem: AttentionProblem, operands: Operands, rest: MaskSpec, *, kv_lengths: bool = False
) -> jax.Array | None:
    """Returns what the rest allows, bool [B or 1, T, S]; None where that is everything.

    With `kv_lengths` a row's end counts as part of the rest, for a kernel that knows no lengths.
    """
    if rest.is_full and not (kv_lengths and problem.has_kv_lengths):
        return None
    # Positions are those of the call; only what is hidden behind a row's end is left out.
    array = mask_array(dataclasses.replace(problem, mask=rest), operands)
    if not problem.has_kv_lengths or kv_lengths:
        return array
    positions = {"q_positions": q_positions(problem, operands)}
    known = dataclasses.replace(problem, mask=rest, has_kv_lengths=False, has_q_positions=True)
    return mask_array(known, {**operands, **positions})


def rest_in_bias(
    problem: AttentionProblem, operands: Operands, rest: MaskSpec, *, kv_lengths: bool = False
) -> jax.Array | None:
    """Returns a bias, fp32 [B or 1, H or 1, T, S], that holds the call's own and MASKED where the rest forbids.

    None where there is neither. MASKED is finite: a row that sees nothing then gets the mean of all values, so zero it
    (`seen_rows`), in the gradients too. `bias_cotangent` brings the sum's cotangent back to the bias's own shape.
    """
    allowed = rest_array(problem, operands, rest, kv_lengths=kv_lengths)
    bias = operands["bias"].astype(wide(problem.dtype)) if problem.has_bias else None
    if allowed is None:
        return bias
    hidden = jnp.where(allowed[:, None], 0.0, MASKED).astype(wide(problem.dtype))
    # Not added: MASKED plus a negative bias would overflow to -inf.
    return hidden if bias is None else jnp.where(allowed[:, None], bias, hidden)


def bias_cotangent(problem: AttentionProblem, cotangent: jax.Array) -> jax.Array:
    """Returns a bias's cotangent in its own shape, given one that was broadcast up to [B, H, T, S]."""
    shape = problem.bias_shape or cotangent.shape
    axes = tuple(i for i, (own, full) in enumerate(zip(shape, cotangent.shape, strict=True)) if own == 1 and full != 1)
    return jnp.sum(cotangent, axis=axes, keepdims=True)


def seen_rows(problem: AttentionProblem, operands: Operands) -> jax.Array | None:
    """Returns which queries see a key at all, bool [B or 1, T]; None where all are known to."""
    if not problem.may_mask_whole_rows:
        return None
    allowed = mask_array(problem, operands)
    return None if allowed is None else jnp.any(allowed, axis=-1)
