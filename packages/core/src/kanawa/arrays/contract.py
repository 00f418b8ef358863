"""One product of activations and a weight whose leading dimensions are contracted."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kanawa.arrays.plan import current_plan


def contract(x: Float[Array, "..."], weight: Float[Array, "..."], num_contracted: int) -> Float[Array, "..."]:
    """Returns x contracted over its last `num_contracted` dimensions with the weight's first."""
    plan = current_plan()
    if plan.native_products:
        # Here, not above: it brings Pallas with it, which takes longer to import than all of this package.
        from kanawa.arrays import products

        inner = math.prod(weight.shape[:num_contracted])
        if products.suits_rows(x, weight, x.size * (weight.size // max(inner, 1)), few=plan.few_rows):
            kept = x.shape[: x.ndim - num_contracted]
            product = products.matmul(x.reshape(-1, inner), weight.reshape(inner, -1))
            return product.reshape(*kept, *weight.shape[num_contracted:])
    # dot_general, not einsum: the program then has one product, whatever the ranks are.
    dims = (tuple(range(x.ndim - num_contracted, x.ndim)), tuple(range(num_contracted)))
    return jax.lax.dot_general(x, weight, (dims, ((), ())))


#: Rows up to which XLA's product with the weight as its left operand is the quickest, and up to which oneDNN's is
#: better that way; elements of a float32 weight from which on oneDNN is quicker than XLA.
_FEW_ROWS = {"float32": 16, "bfloat16": 32}
_FEW_ROWS_OF_ONEDNN = 64
_LARGE_WEIGHT = 2**17
#: Rows up to which XLA's bfloat16 products, the sums left in float32, are quicker than oneDNN's.
_ROWS_IN_BFLOAT16 = 256


def contract_output_first(
    x: Float[Array, "..."], weight: Float[Array, "..."], num_contracted: int
) -> Float[Array, "..."]:
    """Returns x contracted over its last `num_contracted` dimensions with as many last ones of the weight."""
    kept, outputs = x.shape[: x.ndim - num_contracted], weight.shape[: weight.ndim - num_contracted]
    plan, inner = current_plan(), math.prod(weight.shape[weight.ndim - num_contracted :])
    if not plan.few_rows:
        dims = (tuple(range(x.ndim - num_contracted, x.ndim)), tuple(range(len(outputs), weight.ndim)))
        return jax.lax.dot_general(x, weight, (dims, ((), ())))
    product = _rows_by_columns(x.reshape(-1, inner), weight.reshape(-1, inner), x.dtype)
    return product.reshape(*kept, *outputs)


def _rows_by_columns(rows: Float[Array, "B I"], columns: Float[Array, "O I"], dtype: Any) -> Float[Array, "B O"]:
    """Returns the product of rows with a weight laid out outputs first, summed in fp32 and rounded once."""
    count = rows.shape[0]
    if count <= _FEW_ROWS.get(rows.dtype.name, 0):
        return _by_few_rows(rows, columns).astype(dtype)
    in_bfloat16 = rows.dtype == columns.dtype == jnp.bfloat16
    if current_plan().native_products and not (in_bfloat16 and count <= _ROWS_IN_BFLOAT16) and _by_call(rows, columns):
        from kanawa.arrays import products

        if count <= _FEW_ROWS_OF_ONEDNN:
            return products.matmul(columns, rows, transpose_b=True, dtype=dtype).T
        return products.matmul(rows, columns, transpose_b=True, dtype=dtype)
    # With a bfloat16 result XLA widens both operands first, with float32 sums it uses the processor's bfloat16 units.
    product = jax.lax.dot_general(rows, columns, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    return product.astype(dtype)


def _by_few_rows(rows: Float[Array, "B I"], columns: Float[Array, "O I"]) -> Float[Array, "B O"]:
    count = rows.shape[0]
    if count == 1 and rows.dtype == jnp.bfloat16:
        # Of one row XLA makes a product of a vector, which takes it ten times as long as two rows.
        rows = jnp.pad(rows, ((0, 1), (0, 0)))
    product = jax.lax.dot_general(columns, rows, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    # Without the barrier XLA turns the operands round instead of the small result, and packs the weight at every call.
    return jax.lax.optimization_barrier(product).T[:count]


def _by_call(rows: Array, columns: Array) -> bool:
    from kanawa.arrays import products

    if rows.dtype == jnp.float32 and columns.size < _LARGE_WEIGHT:
        return False
    return products.suits(rows, columns, rows.shape[0] * columns.size, 2**16)


def logits_of(x: Float[Array, "... E"], weight: Float[Array, "..."], *, tied: bool) -> Float[Array, "... V"]:
    """Returns x times a head's weight [E, V], or [V, E] where it is tied to an embedding, in fp32.

    Accumulated in fp32 whatever the weights are: a cap or a softmax over 100,000 logits shows bfloat16 steps.
    """
    plan, rows = current_plan(), x.reshape(-1, x.shape[-1])
    if plan.few_rows and tied:
        return _rows_by_columns(rows, weight, jnp.float32).reshape(*x.shape[:-1], weight.shape[0])
    if plan.native_products and plan.few_rows:
        from kanawa.arrays import products

        if products.suits_rows(rows, weight, rows.shape[0] * weight.size, few=True):
            return products.matmul(rows, weight, dtype=jnp.float32).reshape(*x.shape[:-1], weight.shape[1])
    dims = (((x.ndim - 1,), (1 if tied else 0,)), ((), ()))
    return jax.lax.dot_general(x, weight, dims, preferred_element_type=jnp.float32)
