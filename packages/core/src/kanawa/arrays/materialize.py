"""Values that a compiler would compute again for each reader, and layouts it would choose badly; see ProgramTraits.

Without the trait in force, every function here returns its argument, or calls what it is passed, and nothing else.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from kanawa.arrays.plan import current_plan

T = TypeVar("T")


def _differentiated(primal: Callable[[jax.Array], jax.Array], tangent: Callable[[jax.Array], jax.Array]) -> Any:
    """Returns an identity that does something to x and to its tangent, but only where it is differentiated."""

    # A rule for derivatives alone: a barrier in the function itself would prevent fusions in decoding, too.
    @jax.custom_jvp
    def identity(x: jax.Array) -> jax.Array:
        return x

    identity.defjvp(lambda primals, tangents: (primal(primals[0]), tangent(tangents[0])))
    return identity


def _row_by_row(x: jax.Array) -> jax.Array:
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))  # type: ignore[no-any-return]


_materialized = _differentiated(jax.lax.optimization_barrier, jax.lax.optimization_barrier)
_materialized_gradient = _differentiated(lambda x: x, jax.lax.optimization_barrier)
_row_major = _differentiated(_row_by_row, _row_by_row)


def materialized(x: jax.Array) -> jax.Array:
    """Returns x; with `materialized_inputs`, x and its cotangent are arrays in memory where it is differentiated."""
    return _materialized(x) if current_plan().traits.materialized_inputs else x


def materialized_gradient(x: jax.Array) -> jax.Array:
    """Returns x; with `materialized_inputs`, its cotangent is an array in memory."""
    return _materialized_gradient(x) if current_plan().traits.materialized_inputs else x


def row_major(x: jax.Array) -> jax.Array:
    """Returns x; with `row_major_stream`, x and its cotangent have their last axis contiguous in memory where it is
    differentiated.
    """
    return _row_major(x) if current_plan().traits.row_major_stream else x


def computed_once(function: Callable[[jax.Array], T], x: jax.Array, otherwise: Callable[[jax.Array], T]) -> T:
    """Returns function(x), of a finite x; with `recomputes_shared`, it is computed once for all of its readers.

    `otherwise` returns some value of the same shapes and dtypes; it is never called when the program runs.
    """
    if not current_plan().traits.recomputes_shared:
        return function(x)
    # A compiler fuses nothing with what a branch returns. Every x is below infinity, which it can't know.
    first = x[(0,) * x.ndim]
    chosen: T = jax.lax.cond(first < jnp.inf, function, otherwise, x)
    return chosen
