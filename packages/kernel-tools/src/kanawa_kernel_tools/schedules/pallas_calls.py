"""The Pallas kernels of a traced program: their names, grids, blocks of output, and the FLOPs of one step's matmuls."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

#: What a jitted function is called in a trace, by version of JAX.
_JITTED = ("jit", "pjit")


def pallas_calls(jaxpr: Jaxpr, around: str = "pallas_call") -> Iterator[tuple[str, Any]]:
    """Yields (name, equation) of each call of a Pallas kernel, in program order.

    A kernel without a name has that of the innermost jitted function around it, as in compiled programs.
    """
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "pallas_call":
            own = eqn.params.get("name") or getattr(eqn.params.get("name_and_src_info"), "name", None)
            yield str(own or around), eqn
        else:
            name = eqn.params["name"] if eqn.primitive.name in _JITTED else around
            for inner in _inner(eqn):
                yield from pallas_calls(inner, name)


def grid_of(eqn: Any) -> list[int]:
    """Returns the grid of a call; 0 for a dimension that depends on the data."""
    return [size if isinstance(size, int) else 0 for size in eqn.params["grid_mapping"].grid]


def tables_of(traced: ClosedJaxpr, eqn: Any) -> list[list[int] | None]:
    """Returns the call's scalar operands in order: their values, flat, where the program holds them as constants.

    Narrower ones are left out: several share a word of scalar memory, in an order that the compiler chooses.
    """
    known = dict(zip(traced.jaxpr.constvars, traced.consts, strict=True))
    scalars = eqn.invars[: eqn.params["grid_mapping"].num_index_operands]
    # A literal doesn't hash, and no table is one.
    values = [None if hasattr(of, "val") else known.get(of) for of in scalars]
    arrays = [None if value is None else np.asarray(value) for value in values]
    return [None if array is None or array.dtype.itemsize != 4 else array.ravel().tolist() for array in arrays]


def outputs_of(eqn: Any) -> int:
    """Returns of how many blocks the call's output is made: of that output which has most."""
    mappings = list(eqn.params["grid_mapping"].block_mappings)[-len(eqn.outvars) :]
    return max(
        math.prod(-(-size // _extent(block)) for size, block in zip(_shape(out), mapping.block_shape, strict=True))
        for out, mapping in zip(eqn.outvars, mappings, strict=True)
    )


def _extent(block: Any) -> int:
    """Returns how much of a dimension a block holds: one where the kernel doesn't see the dimension."""
    size = getattr(block, "block_size", block)
    return size if isinstance(size, int) else 1


def step_flops(eqn: Any) -> float:
    """Returns the FLOPs of the matmuls of one step of a call's grid."""
    body = eqn.params["jaxpr"]
    return _flops(body.jaxpr if isinstance(body, ClosedJaxpr) else body)


def _flops(jaxpr: Jaxpr) -> float:
    """Returns the FLOPs of the matmuls, loops counted out where their length is known; of branches the longest."""
    total = 0.0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            lhs, out = (_shape(of) for of in (eqn.invars[0], eqn.outvars[0]))
            total += 2.0 * math.prod(out) * math.prod(lhs[axis] for axis in contracted)
        times = float(eqn.params.get("length", 1)) if eqn.primitive.name == "scan" else 1.0
        inside = [_flops(inner) for inner in _inner(eqn)]
        total += max(inside, default=0.0) if eqn.primitive.name == "cond" else times * sum(inside)
    return total


def _shape(of: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = of.aval.shape
    return shape


def _inner(eqn: Any) -> Iterator[Jaxpr]:
    """Yields the programs that an equation holds."""
    for value in eqn.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, ClosedJaxpr):
                yield each.jaxpr
            elif isinstance(each, Jaxpr):
                yield each
