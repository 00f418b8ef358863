"""Mask predicates: what core offers by name, and which ones run inside a kernel.

A plugin adds others in the catalog's kind "masks".
"""

import functools

import jax
import jax.extend
import jax.numpy as jnp

from kanawa.kernels.masks import MaskSpec
from kanawa.plugins import component

_CALLS = frozenset({"jit", "pjit"})


def dilated(q_positions: jax.Array, kv_positions: jax.Array) -> jax.Array:
    """Returns where the distance is even: every second key (Beltagy et al. 2020, arXiv:2004.05150, section 3.1).

    q_positions: int [..., T, 1]; kv_positions: int [..., 1, S]. Operators alone, so that it runs inside any kernel.
    """
    # `& 1` is also right for negative distances, and no division, which some accelerators emulate.
    return ((q_positions - kv_positions) & 1) == 0


def unfit(mask: MaskSpec, elementwise: frozenset[str], language: str) -> str:
    """Returns why a predicate of the mask, `any_of` included, can't run in a kernel; empty if all can.

    elementwise: the primitives that the kernel's language has for numbers of a tile.
    """
    reasons = [_unfit(name, elementwise, language) for name in mask.predicates]
    reasons += [unfit(inner, elementwise, language) for group in mask.any_of for inner in group]
    return "; ".join(reason for reason in reasons if reason)


@functools.lru_cache(maxsize=256)
def _unfit(name: str, elementwise: frozenset[str], language: str) -> str:
    positions = (jax.ShapeDtypeStruct((1, 16, 1), jnp.int32), jax.ShapeDtypeStruct((1, 1, 16), jnp.int32))
    traced = jax.make_jaxpr(component("masks", name))(*positions)
    if traced.consts:
        return f"predicate {name!r} reads an array of its own; a kernel only sees positions"
    foreign = sorted(_primitives(traced.jaxpr) - elementwise)
    return f"predicate {name!r} uses {', '.join(foreign)}, which no {language} kernel has" if foreign else ""


def _primitives(jaxpr: jax.extend.core.Jaxpr) -> set[str]:
    names: set[str] = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name in _CALLS:
            names |= _primitives(equation.params["jaxpr"].jaxpr)
        else:
            names.add(equation.primitive.name)
    return names
