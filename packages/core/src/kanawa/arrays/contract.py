"""One product of activations and a weight whose leading dimensions are contracted."""

import jax
from jaxtyping import Array, Float


def contract(x: Float[Array, "..."], weight: Float[Array, "..."], num_contracted: int) -> Float[Array, "..."]:
    """Returns x contracted over its last `num_contracted` dimensions with the weight's first."""
    # dot_general, not einsum: the program then has one product, whatever the ranks are.
    dims = (tuple(range(x.ndim - num_contracted, x.ndim)), tuple(range(num_contracted)))
    return jax.lax.dot_general(x, weight, (dims, ((), ())))
