"""Which of a mask's registered predicates can be computed inside a Pallas kernel."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
from kanawa.kernels.masks import MaskSpec
from kanawa.plugins import component

#: Primitives of integer and boolean arithmetic that Pallas lowers to Triton, element by element.
_ELEMENTWISE = frozenset(
    {"abs", "add", "and", "broadcast_in_dim", "convert_element_type", "div", "eq", "ge", "gt", "le", "lt", "max", "min"}
    | {"mul", "ne", "neg", "not", "or", "rem", "select_n", "shift_left", "shift_right_arithmetic", "sign", "sub", "xor"}
    | {"shift_right_logical"}
)
_CALLS = frozenset({"jit", "pjit"})


def unfit_predicates(mask: MaskSpec) -> str:
    """Returns why a predicate of the mask, `any_of` included, can't run in a kernel; empty if all can."""
    reasons = [_unfit(name) for name in mask.predicates]
    reasons += [unfit_predicates(inner) for group in mask.any_of for inner in group]
    return "; ".join(reason for reason in reasons if reason)


@functools.lru_cache(maxsize=256)
def _unfit(name: str) -> str:
    positions = (jax.ShapeDtypeStruct((1, 16, 1), jnp.int32), jax.ShapeDtypeStruct((1, 1, 16), jnp.int32))
    traced = jax.make_jaxpr(component("masks", name))(*positions)
    if traced.consts:
        return f"predicate {name!r} reads an array of its own; a kernel only sees positions"
    foreign = sorted(_primitives(traced.jaxpr) - _ELEMENTWISE)
    return f"predicate {name!r} uses {', '.join(foreign)}, which no Triton kernel has" if foreign else ""


def _primitives(jaxpr: jax.extend.core.Jaxpr) -> set[str]:
    names: set[str] = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name in _CALLS:
            names |= _primitives(equation.params["jaxpr"].jaxpr)
        else:
            names.add(equation.primitive.name)
    return names
