"""One product of activations and a weight whose leading dimensions are contracted."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kanawa.arrays.plan import current_plan


def contract(x: Float[Array, "..."], weight: Float[Array, "..."], num_contracted: int) -> Float[Array, "..."]:
    """Returns x contracted over its last `num_contracted` dimensions with the weight's first."""
    plan = current_plan()
    if plan.onednn:
        # Here, not above: it brings Pallas with it, which takes longer to import than all of this package.
        from kanawa.arrays import onednn

        inner = math.prod(weight.shape[:num_contracted])
        if onednn.suits_rows(x, weight, x.size * (weight.size // max(inner, 1)), few=plan.few_rows):
            kept = x.shape[: x.ndim - num_contracted]
            product = onednn.matmul(x.reshape(-1, inner), weight.reshape(inner, -1))
            return product.reshape(*kept, *weight.shape[num_contracted:])
    # dot_general, not einsum: the program then has one product, whatever the ranks are.
    dims = (tuple(range(x.ndim - num_contracted, x.ndim)), tuple(range(num_contracted)))
    return jax.lax.dot_general(x, weight, (dims, ((), ())))


#: Rows up to which a weight is better the left operand; elements of a float32 weight, and rows, from which on oneDNN is
#: quicker than XLA.
_FEW_ROWS = 64
_LARGE_WEIGHT = 2**17
_ROWS_IN_FLOAT32 = 4


def contract_output_first(
    x: Float[Array, "..."], weight: Float[Array, "..."], num_contracted: int
) -> Float[Array, "..."]:
    """Returns x contracted over its last `num_contracted` dimensions with as many last ones of the weight."""
    kept, outputs = x.shape[: x.ndim - num_contracted], weight.shape[: weight.ndim - num_contracted]
    plan, inner = current_plan(), math.prod(weight.shape[weight.ndim - num_contracted :])
    if not plan.few_rows:
        dims = (tuple(range(x.ndim - num_contracted, x.ndim)), tuple(range(len(outputs), weight.ndim)))
        return jax.lax.dot_general(x, weight, (dims, ((), ())))
    rows, columns = x.reshape(-1, inner), weight.reshape(-1, inner)
    few = rows.shape[0] <= _FEW_ROWS
    left, right = (columns, rows) if few else (rows, columns)
    if plan.onednn and _by_onednn(rows, columns):
        from kanawa.arrays import onednn

        product = onednn.call(left, right, transpose_b=True)
    else:
        product = jax.lax.dot_general(left, right, (((1,), (1,)), ((), ())))
    # Few rows: what is turned round is small.
    return (product.T if few else product).reshape(*kept, *outputs)


def _by_onednn(rows: Array, columns: Array) -> bool:
    from kanawa.arrays import onednn

    if rows.dtype == jnp.float32 and (columns.size < _LARGE_WEIGHT or rows.shape[0] < _ROWS_IN_FLOAT32):
        return False
    return onednn.suits(rows, columns, rows.shape[0] * columns.size, 2**16)


def logits_of(x: Float[Array, "... E"], weight: Float[Array, "..."], *, tied: bool) -> Float[Array, "... V"]:
    """Returns x times a head's weight [E, V], or [V, E] where it is tied to an embedding, in fp32.

    Accumulated in fp32 whatever the weights are: a cap or a softmax over 100,000 logits shows bfloat16 steps.
    """
    plan = current_plan()
    if plan.onednn and plan.few_rows:
        from kanawa.arrays import onednn

        rows = x.reshape(-1, x.shape[-1])
        if onednn.suits_rows(rows, weight, rows.shape[0] * weight.size, few=True):
            logits = onednn.call(rows, weight, transpose_b=tied, dtype=jnp.float32)
            return logits.reshape(*x.shape[:-1], logits.shape[-1])
    dims = (((x.ndim - 1,), (1 if tied else 0,)), ((), ()))
    return jax.lax.dot_general(x, weight, dims, preferred_element_type=jnp.float32)
