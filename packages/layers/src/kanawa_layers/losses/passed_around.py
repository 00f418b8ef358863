"""Contrastive losses of a batch spread over devices: chunks of one side go around, and no device has all logits.

A device compares its own rows with the chunk at hand, passes the chunk on, and after as many turns as there are devices
has compared them with all. What a chunk's own rows need travels with it. Memory is one square of logits a device.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float
from kanawa.arrays.constrain import auto_mesh_shape
from kanawa.arrays.plan import current_plan
from kanawa.arrays.rules import assign

from kanawa_layers.losses.ctc import LOG_ZERO


def softmax_contrastive_over_devices(
    left: Float[Array, "N D"], right: Float[Array, "N D"], logit_scale: Float[Array, ""], valid: Bool[Array, " N"]
) -> Float[Array, " N"]:
    """Returns what `softmax_contrastive` does for vectors of length 1; pairs that aren't `valid` are no negatives."""

    def one_shard(left: Any, right: Any, valid: Any, scale: Any, turns: int, around: Callable[[Any], Any]) -> Any:
        def turn(carry: Any, _: None) -> tuple[Any, None]:
            of_left, (chunk, its_valid, of_right) = carry
            logits = scale * left @ chunk.T
            of_left = jnp.logaddexp(of_left, _summed(logits, its_valid[None], 1))
            of_right = jnp.logaddexp(of_right, _summed(logits, valid[:, None], 0))
            return (of_left, around((chunk, its_valid, of_right))), None

        nothing = jnp.full(left.shape[:1], LOG_ZERO)
        start = (nothing, (right, valid, nothing))
        (of_left, (_, _, of_right)), _ = jax.lax.scan(jax.checkpoint(turn), start, None, length=turns)
        return 0.5 * (of_left + of_right) - scale * jnp.sum(left * right, axis=1)

    return _spread(one_shard, left, right, valid, logit_scale)


def sigmoid_contrastive_over_devices(
    left: Float[Array, "N D"],
    right: Float[Array, "N D"],
    logit_scale: Float[Array, ""],
    logit_bias: Float[Array, ""],
    valid: Bool[Array, " N"],
) -> Float[Array, " N"]:
    """Returns what `sigmoid_contrastive` does for vectors of length 1; pairs that aren't `valid` are no negatives."""

    def one_shard(left: Any, right: Any, valid: Any, numbers: Any, turns: int, around: Callable[[Any], Any]) -> Any:
        scale, bias = numbers[0], numbers[1]

        def turn(carry: Any, _: None) -> tuple[Any, None]:
            total, (chunk, its_valid) = carry
            each = jax.nn.softplus(scale * left @ chunk.T + bias)
            return (total + jnp.sum(jnp.where(its_valid[None], each, 0.0), axis=1), around((chunk, its_valid))), None

        start = (jnp.zeros(left.shape[:1]), (right, valid))
        (total, _), _ = jax.lax.scan(jax.checkpoint(turn), start, None, length=turns)
        # The pair's own term is softplus(-x) = softplus(x) - x.
        return total - (scale * jnp.sum(left * right, axis=1) + bias)

    return _spread(one_shard, left, right, valid, jnp.stack([logit_scale, logit_bias]))


def _summed(logits: Float[Array, "N M"], valid: Bool[Array, "..."], axis: int) -> Float[Array, " K"]:
    """Returns the logarithm of the summed exponentials of valid places."""
    summed: jax.Array = jax.nn.logsumexp(jnp.where(valid, logits, LOG_ZERO), axis=axis)
    return summed


def _spread(one_shard: Callable[..., Any], left: Any, right: Any, valid: Any, numbers: Any) -> Float[Array, " N"]:
    """Returns the rows' losses: on one device directly, else on each shard of the mesh axes that split the batch."""
    sizes = auto_mesh_shape()
    (over,) = assign(("batch",), current_plan().activation_rules, sizes) if sizes else ((),)
    if not over:
        alone: jax.Array = one_shard(left, right, valid, numbers, 1, lambda chunk: chunk)
        return alone
    turns, names = 1, tuple(over)
    for name in names:
        turns *= sizes[name]
    to_the_next = [(i, (i + 1) % turns) for i in range(turns)]

    def around(chunk: Any) -> Any:
        return jax.tree.map(lambda x: jax.lax.ppermute(x, names, to_the_next), chunk)

    rows = PartitionSpec(names)
    mapped: Callable[..., jax.Array] = jax.shard_map(
        functools.partial(one_shard, turns=turns, around=around),
        in_specs=(rows, rows, rows, PartitionSpec()),
        out_specs=rows,
        axis_names=set(names),
        check_vma=False,
    )
    return mapped(left, right, valid, numbers)
