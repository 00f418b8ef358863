"""Rules that an operation's arguments have to keep, each broken one as a sentence with argument, value and rule.

Values of arrays are looked at where they are at hand, outside of `jit`. Inside, shapes and dtypes are checked, and an
index that is out of range reads or writes nothing it shouldn't: kernels clamp it.
"""

import math
from collections.abc import Collection, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kanawa.errors import KernelError

#: Largest array whose values are looked at: an index is quickly checked, a whole weight isn't.
_LARGEST_CHECKED = 1 << 20


def refuse_bad_input(operation: str, broken: Iterable[str]) -> None:
    """Raises KernelError that names the operation and every broken rule, if there is one."""
    sentences = list(broken)
    if sentences:
        message = f"{operation}: " + "; ".join(sentences)
        raise KernelError(message)


def not_integers(arrays: dict[str, Any], names: Collection[str], what: str) -> list[str]:
    """Returns a sentence for each of these arrays, where present, that isn't of integers."""
    return [
        f"{name} is {arrays[name].dtype}; {what} are integers"
        for name in names
        if name in arrays and not jnp.issubdtype(arrays[name].dtype, jnp.integer)
    ]


def not_floats(arrays: dict[str, Any], names: Collection[str]) -> list[str]:
    """Returns a sentence for each of these arrays, where present, that isn't of floating-point numbers."""
    return [
        f"{name} is {arrays[name].dtype}; it must be floating-point"
        for name in names
        if name in arrays and not jnp.issubdtype(arrays[name].dtype, jnp.floating)
    ]


def mixed_dtypes(arrays: dict[str, Any], names: Collection[str]) -> list[str]:
    """Returns a sentence where these arrays differ in dtype."""
    dtypes = {name: str(arrays[name].dtype) for name in names if name in arrays}
    if len(set(dtypes.values())) < 2:
        return []
    listed = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
    return [f"dtypes are mixed ({listed}); cast them to one"]


def not_positive(**numbers: float | None) -> list[str]:
    """Returns a sentence for each number that isn't None, nor finite and above 0."""
    return [
        f"{name} {number:g} must be positive and finite"
        for name, number in numbers.items()
        if number is not None and not (math.isfinite(number) and number > 0)
    ]


def outside(low: float, high: float, **numbers: float) -> list[str]:
    """Returns a sentence for each number that isn't in [low, high)."""
    return [
        f"{name} {number:g} must be at least {low:g} and less than {high:g}"
        for name, number in numbers.items()
        # Written so that NaN is outside too.
        if not low <= number < high
    ]


def values(x: Any) -> np.ndarray | None:
    """Returns the values of a small array; None while tracing, or where it is spread over processes."""
    if x is None or isinstance(x, jax.core.Tracer) or getattr(x, "size", 0) > _LARGEST_CHECKED:
        return None
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return None
    return np.asarray(x) if isinstance(x, (jax.Array, np.ndarray)) else None


def first_bad(name: str, x: Any, bad: Any, rule: str) -> list[str]:
    """Returns a sentence that names the first place of `x` where `bad` holds, and the rule that it breaks."""
    places = np.argwhere(np.broadcast_to(bad, x.shape))
    if not len(places):
        return []
    at = tuple(int(i) for i in places[0])
    more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
    return [f"{name}{list(at)} is {x[at]}{more}; {rule}"]
