"""Array shapes as HLO text writes them: `bf16[4,4096]{1,0:T(8,128)}`, tuples included."""

import math
import re
from dataclasses import dataclass

# The tail of an 8-bit dtype has letters and digits, as in f8e4m3b11fnuz. A layout is read for its memory space alone.
_ARRAY = re.compile(r"\b([a-z]+[0-9]*(?:e[0-9]+m[0-9]+[a-z0-9]*)?)\[([0-9,<= ]*)\](?:\{([^{}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
#: The memory space of a layout that is the host's; others are the device's main memory (0) or on its chip.
HOST = 5
#: Bits an element takes; what isn't here (tokens, opaque) takes none.
_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128}
#: HLO's names of what a DeviceSpec calls otherwise.
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "s8": "int8", "u8": "int8"}
_DTYPES |= {"s4": "int4", "u4": "int4"}


@dataclass(frozen=True)
class ArrayShape:
    """One array: its HLO dtype, such as "bf16", its dimensions, and the memory space that its layout names."""

    dtype: str
    dims: tuple[int, ...]
    space: int = 0

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes without the padding of tiles."""
        return -(-self.size * bits(self.dtype) // 8)


def bits(dtype: str) -> int:
    """Returns the bits of one element of an HLO dtype."""
    if dtype in _BITS:
        return _BITS[dtype]
    digits = re.match(r"[a-z]+([0-9]+)", dtype)
    # f8e4m3fn: the digits after the first letter are the bits, those of exponent and mantissa follow.
    return int(digits[1]) if digits and dtype[0] in "fsu" else 0


def arrays(text: str) -> list[ArrayShape]:
    """Returns the arrays of a shape text in order; a tuple's leaves. Layouts and comments are skipped."""
    leaves = []
    for match in _ARRAY.finditer(text):
        # A bounded dynamic dimension, `<=8`, is held at its bound.
        dims = tuple(int(d.replace("<=", "")) for d in match[2].split(",") if d.strip())
        space = _SPACE.search(match[3] or "")
        leaves.append(ArrayShape(match[1], dims, int(space[1]) if space else 0))
    return leaves


def device_dtype(dtype: str) -> str:
    """Returns the name a DeviceSpec has for an HLO dtype, such as "bfloat16" for "bf16"."""
    narrow = re.fullmatch(r"f([48])(e\d+m\d+\w*)", dtype)
    if narrow:
        return f"float{narrow[1]}_{narrow[2]}"
    return _DTYPES.get(dtype, dtype)
