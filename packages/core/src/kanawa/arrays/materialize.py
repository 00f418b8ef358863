"""Arrays that a compiler must write to memory where it would rather compute them again inside each matmul that reads
them, and the layout it must keep some in. TPU compilers fuse what comes before a matmul into it, and then do it once
for every tile of the result.
"""

import jax
from jax.experimental.layout import Layout, with_layout_constraint


# A rule for derivatives alone: a barrier in the function itself would stand in decoding's programs too, whose fusions
# are wanted.
@jax.custom_jvp
def materialized(x: jax.Array) -> jax.Array:
    """Returns x; when differentiated, x and its cotangent are arrays in memory. Without gradients nothing changes."""
    return x


@materialized.defjvp
def _materialized_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return jax.lax.optimization_barrier(primals[0]), jax.lax.optimization_barrier(tangents[0])


@jax.custom_jvp
def materialized_gradient(x: jax.Array) -> jax.Array:
    """Returns x; when differentiated, its cotangent is an array in memory."""
    return x


@materialized_gradient.defjvp
def _gradient_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return primals[0], jax.lax.optimization_barrier(tangents[0])


@jax.custom_jvp
def row_major(x: jax.Array) -> jax.Array:
    """Returns x; when differentiated, x and its cotangent lie in memory with the last axis next to each other.

    A TPU compiler may choose to carry the stream of a loop over layers the other way round, because one matmul likes it
    so, and then copies what it kept of each layer back for all others.
    """
    return x


@row_major.defjvp
def _row_major_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    layout = Layout(tuple(range(primals[0].ndim)))
    return with_layout_constraint(primals[0], layout), with_layout_constraint(tangents[0], layout)
