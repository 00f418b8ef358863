"""Arrays that a compiler must write to memory where it would rather compute them again inside each matmul that reads
them. TPU compilers fuse what comes before a matmul into it, and then do it once for every tile of the result.
"""

import jax


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
