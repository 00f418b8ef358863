"""Which dtype the operands of emulated matmuls have on hardware that multiplies it; plans count them so."""

import re
from contextlib import AbstractContextManager

import jax

_STATED = re.compile(r"\boperands~(\w+)")


def operands_as(dtype: str) -> AbstractContextManager[None]:
    """Returns a name scope whose matmuls stand for matmuls of this dtype, such as "float4_e2m1fn"."""
    return jax.named_scope(f"operands~{dtype}")


def stated_dtype(name_stack: str) -> str | None:
    """Returns the dtype that the innermost such scope of a name stack states; None without one."""
    found = _STATED.findall(name_stack)
    return found[-1] if found else None
