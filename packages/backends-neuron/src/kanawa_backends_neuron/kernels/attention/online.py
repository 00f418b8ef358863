"""NKI: a softmax taken block by block (Milakov and Gimelshein 2018, arXiv:1805.02867), with its weighted values."""

from typing import Any, NamedTuple

import nki.isa as nisa
import nki.language as nl

from kanawa_backends_neuron.kernels.attention.scores import MASKED, seen
from kanawa_backends_neuron.kernels.tiles import PARTITIONS, filled, transpose_into


class Online(NamedTuple):
    """Of each query, in SBUF and fp32: largest score [count, 1], sum of weights [count, 1], weighted values."""

    top: Any
    total: Any
    values: Any


def empty_state(count: int, width: int) -> Online:
    """Returns what is known before any key."""
    return Online(filled((count, 1), MASKED), filled((count, 1), 0.0), filled((count, width), 0.0))


def absorb(state: Online, scores: Any, values: list[Any]) -> None:
    """Takes in a block's scores [count, keys] and its values, 128 rows a tile, in place."""
    count, keys = scores.shape
    negative, rescale, added = (nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(3))
    highest = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=highest, op=nl.maximum, data=scores, axis=1)
    nisa.tensor_tensor(dst=highest, data1=highest, data2=state.top, op=nl.maximum)
    nisa.tensor_scalar(dst=negative, data=highest, op0=nl.multiply, operand0=-1.0)
    # What was summed under a smaller maximum is scaled down to the new one.
    nisa.activation(dst=rescale, op=nl.exp, data=state.top, bias=negative)
    nisa.tensor_copy(dst=state.top, src=highest)
    weights = nl.ndarray((count, keys), dtype=values[0].dtype, buffer=nl.sbuf)
    nisa.activation(
        dst=weights,
        op=nl.exp,
        data=scores,
        bias=negative,
        reduce_op=nl.add,
        reduce_res=added,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    nisa.scalar_tensor_tensor(
        dst=state.total, data=state.total, op0=nl.multiply, operand0=rescale, op1=nl.add, operand1=added
    )
    weighed = nl.ndarray(state.values.shape, dtype=nl.float32, buffer=nl.psum)
    for number, tile in enumerate(values):
        size, first = tile.shape[0], number * PARTITIONS
        transposed = nl.ndarray((size, count), dtype=weights.dtype, buffer=nl.sbuf)
        transpose_into(transposed, weights[:, first : first + size])
        nisa.nc_matmul(dst=weighed, stationary=transposed, moving=tile, accumulate=number > 0)
    nisa.scalar_tensor_tensor(
        dst=state.values, data=state.values, op0=nl.multiply, operand0=rescale, op1=nl.add, operand1=weighed
    )


def normalized_output(state: Online, dtype: Any) -> tuple[Any, Any]:
    """Returns (output [count, width], log-sum-exp fp32 [count, 1]); rows that saw no key have 0 and about MASKED."""
    count, width = state.values.shape
    # The largest score's own weight is 1. Only rows that saw nothing have less, and they must not divide by 0.
    nisa.tensor_scalar(dst=state.total, data=state.total, op0=nl.maximum, operand0=0.5)
    share, lse = (nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
    nisa.reciprocal(dst=share, data=state.total)
    nisa.tensor_tensor(dst=share, data1=share, data2=seen(state.top), op=nl.multiply)
    out = nl.ndarray((count, width), dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=out, data=state.values, op0=nl.multiply, operand0=share)
    nisa.activation(dst=lse, op=nl.log, data=state.total)
    nisa.tensor_tensor(dst=lse, data1=lse, data2=state.top, op=nl.add)
    return out, lse
