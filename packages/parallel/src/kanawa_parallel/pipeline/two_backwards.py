"""A backward pass in two: first the gradients of inputs, which other stages wait for, later those of weights.

The traced backward is cut: what the inputs' gradients need runs in the first part, everything else in the second.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

#: Calls that are written out, so that both parts of the cut can lie inside.
_CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2"})


class TwoBackwards(NamedTuple):
    """`of_inputs(p, others, x, dy)` returns (dx, rest), and `of_weights(p, others, rest)` the gradients of `p`."""

    of_inputs: Callable[[Any, Any, Any, Any], tuple[Any, list[jax.Array]]]
    of_weights: Callable[[Any, Any, list[jax.Array]], Any]


def in_two(backward: Callable[..., tuple[Any, Any]], p: Any, others: Any, x: Any, dy: Any) -> TwoBackwards:
    """Returns both parts of `backward(p, others, x, dy)`, which returns (gradients of p, of x).

    Arguments say shapes and dtypes only. What depends on `p` and `others` alone is computed in both parts.
    """
    written_out, shapes = jax.make_jaxpr(_written_out(backward), return_shape=True)(p, others, x, dy)
    jaxpr, consts = written_out.jaxpr, written_out.consts
    of_p, of_x = (jax.tree.structure(shape) for shape in shapes)
    count = len(jax.tree.leaves(shapes[0]))
    given = len(jax.tree.leaves((p, others)))
    ends = jaxpr.outvars[:count], jaxpr.outvars[count:]
    first = _needed(jaxpr.eqns, ends[1], frozenset())
    made_first = {var for eqn in first for var in eqn.outvars}
    again = _following(jaxpr, (*jaxpr.constvars, *jaxpr.invars[:given]))
    saved = (made_first | set(jaxpr.invars[given:])) - again
    second = _needed(jaxpr.eqns, ends[0], saved)
    used = {var for eqn in second for var in _variables(eqn.invars)} | set(_variables(ends[0]))
    rest = [var for eqn in first for var in eqn.outvars if var in used & saved]
    rest += [var for var in jaxpr.invars[given:] if var in used]

    starts = (*jaxpr.constvars, *jaxpr.invars)
    to_inputs = _function(jaxpr, first, starts, (*ends[1], *rest))
    to_weights = _function(jaxpr, second, (*starts[: len(jaxpr.constvars) + given], *rest), ends[0])

    def of_inputs(p: Any, others: Any, x: Any, dy: Any) -> tuple[Any, list[jax.Array]]:
        results = to_inputs(*consts, *jax.tree.leaves((p, others, x, dy)))
        return jax.tree.unflatten(of_x, results[: len(ends[1])]), results[len(ends[1]) :]

    def of_weights(p: Any, others: Any, values: list[jax.Array]) -> Any:
        return jax.tree.unflatten(of_p, to_weights(*consts, *jax.tree.leaves((p, others)), *values))

    return TwoBackwards(of_inputs, of_weights)


def _needed(eqns: Sequence[Any], ends: Iterable[Any], known: Iterable[Any]) -> list[Any]:
    """Returns the equations that the variables `ends` need, in order, where those of `known` are there already."""
    known, wanted = set(known), set(_variables(ends))
    found = []
    for eqn in reversed(eqns):
        if any(var in wanted and var not in known for var in eqn.outvars):
            found.append(eqn)
            wanted.update(_variables(eqn.invars))
    return found[::-1]


def _following(jaxpr: Jaxpr, start: Iterable[Any]) -> set[Any]:
    """Returns the variables that follow from those of `start` alone."""
    known = set(start)
    for eqn in jaxpr.eqns:
        if known.issuperset(_variables(eqn.invars)):
            known.update(eqn.outvars)
    return known


def _variables(atoms: Iterable[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def _function(jaxpr: Jaxpr, eqns: Sequence[Any], starts: Iterable[Any], ends: Iterable[Any]) -> Callable[..., Any]:
    """Returns the function that runs some of a program's equations."""
    part: Jaxpr = jaxpr.replace(constvars=[], invars=[*starts], outvars=[*ends], eqns=[*eqns])
    function: Callable[..., Any] = jaxpr_as_fun(ClosedJaxpr(part, []))
    return function


def _written_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with its calls, and its loops over a single item, written out."""

    def call(*args: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        results = _evaluated(closed.jaxpr, closed.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return call


def _evaluated(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def values(atoms: Iterable[Any]) -> list[Any]:
        return [atom.val if isinstance(atom, Literal) else known[atom] for atom in atoms]

    for eqn in jaxpr.eqns:
        name, at = eqn.primitive.name, str(eqn.source_info.name_stack)
        with jax.named_scope(at) if at else contextlib.nullcontext():
            if name in _CALLS:
                inner: Any = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
                body, own = getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())
                results = _evaluated(body, own, values(eqn.invars))
            elif name == "scan" and eqn.params["length"] == 1:
                results = _once(eqn.params, values(eqn.invars))
            else:
                starts = list(dict.fromkeys(_variables(eqn.invars)))
                results = _function(jaxpr, [eqn], starts, eqn.outvars)(*values(starts))
        known.update(zip(eqn.outvars, results, strict=True))
    return values(jaxpr.outvars)


def _once(scan: dict[str, Any], values: list[Any]) -> list[Any]:
    """Returns the results of a loop over one item."""
    whole = scan["num_consts"] + scan["num_carry"]
    body = scan["jaxpr"]
    results = _evaluated(body.jaxpr, body.consts, [*values[:whole], *(x[0] for x in values[whole:])])
    return [*results[: scan["num_carry"]], *(jnp.expand_dims(y, 0) for y in results[scan["num_carry"] :])]
