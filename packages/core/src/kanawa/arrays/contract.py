"""One product of activations and a weight whose leading dimensions are contracted."""

import math

import jax
from jaxtyping import Array, Float

from kanawa.arrays.plan import current_plan


def contract(x: Float[Array, "..."], weight: Float[Array, "..."], num_contracted: int) -> Float[Array, "..."]:
    """Returns x contracted over its last `num_contracted` dimensions with the weight's first."""
    if current_plan().onednn:
        # Here, not above: it brings Pallas with it, which takes longer to import than all of this package.
        from kanawa.arrays import onednn

        inner = math.prod(weight.shape[:num_contracted])
        if onednn.suits(x, weight, x.size * (weight.size // max(inner, 1))):
            kept = x.shape[: x.ndim - num_contracted]
            product = onednn.matmul(x.reshape(-1, inner), weight.reshape(inner, -1))
            return product.reshape(*kept, *weight.shape[num_contracted:])
    # dot_general, not einsum: the program then has one product, whatever the ranks are.
    dims = (tuple(range(x.ndim - num_contracted, x.ndim)), tuple(range(num_contracted)))
    return jax.lax.dot_general(x, weight, (dims, ((), ())))
