"""A traced program as one flat list of equations: calls are inlined, loops and branches keep theirs."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from kanawa.kernels.matmul import is_matmul

#: What holds a program only to give it another rule for differentiation, compilation or memory.
_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
#: What runs its program other than once, or hides it in a kernel.
_OWN_SCOPE = frozenset({"scan", "while", "cond", "pallas_call", "custom_partitioning", "reduce", "reduce_window"})
#: What stands for a shard_map's borders in the flat list: from here on shapes are a device's own, and back.
ENTER, LEAVE = "enter_shards", "leave_shards"


class Value:
    """An array of the traced program: global shape and dtype, or a device's own inside shards; `host` if it lies in the
    host's memory.
    """

    __slots__ = ("bits", "dtype", "host", "shape")

    def __init__(self, aval: Any) -> None:
        """Takes shape and dtype from an abstract value; what has none, such as a token, takes no memory."""
        self.shape: tuple[int, ...] = tuple(getattr(aval, "shape", ()))
        self.dtype: str = str(getattr(aval, "dtype", "token"))
        self.bits = _bits(getattr(aval, "dtype", None))
        self.host = "host" in str(getattr(aval, "memory_space", "")).lower()

    @property
    def bytes(self) -> float:
        """Bytes of the whole array."""
        return math.prod(self.shape) * self.bits / 8


@dataclasses.dataclass(eq=False)
class Equation:
    """One operation; `path` is its name stack, which holds the modules that it belongs to. None among inputs is a
    literal. `again` if it stands in what a backward pass recomputes from.
    """

    name: str
    params: dict[str, Any]
    inputs: list[Value | None]
    outputs: list[Value]
    path: str
    again: bool = False


@dataclasses.dataclass(eq=False)
class Scope:
    """A program, a loop's body or a branch: what comes in, what is done, what goes out."""

    inputs: list[Value]
    equations: list[Equation]
    outputs: list[Value | None]


def flat_scope(jaxpr: Any, prefix: str = "") -> Scope:
    """Returns the scope of a jaxpr (closed or not), with its calls inlined; constants are inputs, first."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    values: dict[Any, Value] = {}
    inputs = [values.setdefault(var, Value(var.aval)) for var in (*inner.constvars, *inner.invars)]
    equations = list(_equations(inner, values, prefix, False))
    outputs = [_value(var, values) for var in inner.outvars]
    return Scope(inputs, _live(equations, outputs), outputs)


def _live(equations: list[Equation], outputs: list[Value | None]) -> list[Equation]:
    """Returns the equations that an output follows from: compilers drop the others."""
    used = {value for value in outputs if value is not None}
    live = []
    for eqn in reversed(equations):
        if any(out in used for out in eqn.outputs):
            live.append(eqn)
            used.update(value for value in eqn.inputs if value is not None)
    return live[::-1]


def _equations(jaxpr: Any, values: dict[Any, Value], prefix: str, again: bool) -> Iterator[Equation]:
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        path = f"{prefix}/{eqn.source_info.name_stack}".strip("/")
        body = None if name in _OWN_SCOPE else next((eqn.params[k] for k in _CALLS if k in eqn.params), None)
        if body is None:
            inputs = [_value(var, values) for var in eqn.invars]
            outputs = [_new(var, values) for var in eqn.outvars]
            if name == "device_put":
                _place(eqn, outputs)
            params = eqn.params
            if is_matmul(eqn.primitive):
                # Whichever kernel computes it.
                name, params = "dot_general", {"dimension_numbers": (params["problem"].contraction, ((), ()))}
            yield Equation(name, params, inputs, outputs, path, again)
        elif name == "shard_map":
            yield from _shards(eqn, body, values, path, again)
        else:
            # A checkpointed function stands in the backward pass as one call: what is recomputed, and its gradient.
            inside = again or eqn.params.get("differentiated") is True
            yield from _inlined(eqn, body, values, f"{path}/{eqn.params.get('name', '')}".rstrip("/"), inside)


def _inlined(eqn: Any, body: Any, values: dict[Any, Value], path: str, again: bool) -> Iterator[Equation]:
    inner = getattr(body, "jaxpr", body)
    local = {var: Value(var.aval) for var in inner.constvars}
    for var, outer in zip(inner.invars, eqn.invars, strict=True):
        local[var] = _value(outer, values) or Value(var.aval)
    yield from _equations(inner, local, path, again)
    for var, outer in zip(inner.outvars, eqn.outvars, strict=True):
        made = _value(var, local)
        values[outer] = Value(outer.aval) if made is None else made


def _shards(eqn: Any, body: Any, values: dict[Any, Value], path: str, again: bool) -> Iterator[Equation]:
    inner = getattr(body, "jaxpr", body)
    local = {var: Value(var.aval) for var in inner.constvars}
    for var, outer, spec in zip(inner.invars, eqn.invars, eqn.params["in_specs"], strict=True):
        local[var] = Value(var.aval)
        yield Equation(ENTER, {"spec": spec}, [_value(outer, values)], [local[var]], path)
    yield from _equations(inner, local, path, again)
    for var, outer, spec in zip(inner.outvars, eqn.outvars, eqn.params["out_specs"], strict=True):
        yield Equation(LEAVE, {"spec": spec}, [_value(var, local)], [_new(outer, values)], path)


def scan_parts(params: dict[str, Any]) -> tuple[int, int]:
    """Returns how many inputs of a `scan` are constants, and how many the carry."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    # From jax 0.11 on a scan keeps the trees of its inputs instead.
    consts, carry, _ = params["ft_in"].unpack()
    return len(list(consts.vals)), len(list(carry.vals))


def _place(eqn: Any, outputs: list[Value]) -> None:
    """Marks what is sent to the host's memory."""
    for value, where in zip(outputs, eqn.params["devices"], strict=False):
        kind = str(getattr(where, "memory_kind", None) or where).lower()
        value.host = "host" in kind


def _new(var: Any, values: dict[Any, Value]) -> Value:
    return values.setdefault(var, Value(var.aval))


def _value(var: Any, values: dict[Any, Value]) -> Value | None:
    # Tracing may leave a variable that nothing defines, such as a constant of another trace: it is an input then.
    return None if isinstance(var, Literal) else _new(var, values)


def _bits(dtype: Any) -> int:
    if dtype is None:
        return 0
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        # A random key is two words.
        return 64
    # A truth value takes a byte, whatever it says.
    bits: int = 8 if jnp.issubdtype(dtype, jnp.bool_) else jax.dtypes.itemsize_bits(dtype)
    return bits
