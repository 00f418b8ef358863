"""Cutting a batch into microbatches, and the mesh's stages."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from kanawa.arrays.constrain import auto_mesh_shape
from kanawa.arrays.plan import current_plan
from kanawa.arrays.rules import assign
from kanawa.errors import ShardingError


def stage_axes() -> tuple[tuple[str, ...], int]:
    """Returns the mesh axes that hold pipeline stages, and how many stages they make; ((), 1) without any."""
    sizes = auto_mesh_shape()
    (axes,) = assign(("stage",), current_plan().activation_rules, sizes)
    return axes, math.prod(sizes[axis] for axis in axes)


def idle_fraction(stages: int, microbatches: int, rounds: int = 1) -> float:
    """Returns the share of a step in which a stage waits, for any times of forward and backward."""
    return (stages - 1) / (rounds * microbatches + stages - 1)


def split_rows(tree: Any, count: int) -> Any:
    """Returns arrays [B, …] as [count, B / count, …]; row r goes to microbatch r mod count.

    Dealing rows out in turn leaves each microbatch spread over the same devices as the batch.
    """

    def split(x: jax.Array) -> jax.Array:
        if x.shape[0] % count:
            message = (
                f"a batch of {x.shape[0]} rows can't be cut into {count} equal microbatches; "
                f"choose microbatches that divide it"
            )
            raise ShardingError(message)
        return x.reshape(x.shape[0] // count, count, *x.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(split, tree)


def join_rows(x: jax.Array) -> jax.Array:
    """Undoes `split_rows` for one array."""
    return x.swapaxes(0, 1).reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def pick_microbatch(tree: Any, index: jax.Array) -> Any:
    """Returns the microbatches of `index` (any shape, clipped to those there are)."""
    return jax.tree.map(lambda x: jnp.take(x, index, axis=0, mode="clip"), tree)
