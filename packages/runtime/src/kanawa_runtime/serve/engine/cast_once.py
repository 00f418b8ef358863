"""Parameters that a program reads in the computing dtype only, to be cast when they are loaded.

Parameters are stored in fp32, and layers cast what they read: training needs that. An engine's copy is only read; a
cast in each step would cost more than the matmul. Norms and routers read theirs in fp32, which only the traced program
shows.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def read_as(function: Callable[..., Any], params: Any, rest: tuple[Any, ...], dtype: Any) -> Any:
    """Returns a tree like `params` of booleans: which of them function(params, *rest) only ever casts to `dtype`.

    Arguments may be abstract. Operands of loops and of programs that can't be inspected count as read.
    """
    structure: Any
    leaves, structure = jax.tree.flatten(params)
    traced = jax.make_jaxpr(function)(params, *rest).jaxpr
    wanted = jnp.dtype(dtype)
    return structure.unflatten([_is_only_cast(traced, traced.invars[i], wanted) for i in range(len(leaves))])


def cast_params(params: Any, which: Any, dtype: Any) -> Any:
    """Returns the parameters, those cast that `which` says."""
    return jax.tree.map(lambda x, here: x.astype(dtype) if here else x, params, which)


def _is_only_cast(jaxpr: Any, variable: Any, dtype: jnp.dtype) -> bool:
    uses = _uses(jaxpr, variable)
    returned = any(out is variable for out in jaxpr.outvars)
    return bool(uses) and not returned and all(_casts(jaxpr, eqn, i, dtype) for eqn, i in uses)


def _casts(jaxpr: Any, eqn: Any, index: int, dtype: jnp.dtype) -> bool:
    if eqn.primitive.name == "convert_element_type":
        # A table that rows are looked up in: XLA may widen all of a bfloat16 one to read a few of its rows.
        return eqn.params["new_dtype"] == dtype and not _is_looked_up(jaxpr, eqn.outvars[0])
    inner = _program_of(eqn)
    return inner is not None and _is_only_cast(inner, inner.invars[index], dtype)


def _is_looked_up(jaxpr: Any, variable: Any) -> bool:
    for eqn, index in _uses(jaxpr, variable):
        inner = _program_of(eqn)
        if eqn.primitive.name == "gather" or (inner is not None and _is_looked_up(inner, inner.invars[index])):
            return True
    return False


def _program_of(eqn: Any) -> Any:
    """Returns the program that an equation calls with its own operands; None where it is no plain call."""
    if eqn.primitive.name not in ("jit", "pjit", "closed_call"):
        return None
    inner = eqn.params["jaxpr"].jaxpr if "jaxpr" in eqn.params else None
    return inner if inner is not None and len(inner.invars) == len(eqn.invars) else None


def _uses(jaxpr: Any, variable: Any) -> list[tuple[Any, int]]:
    return [(eqn, i) for eqn in jaxpr.eqns for i, operand in enumerate(eqn.invars) if operand is variable]
