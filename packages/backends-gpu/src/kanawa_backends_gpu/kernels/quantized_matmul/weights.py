"""quantized_matmul.gpu.weights: activations times weights stored in four or eight bits with a scale for each group.

XLA unpacks and scales such a weight as a whole, in memory, before it multiplies. Here a program reads a tile of the
stored bytes, converts them in registers, multiplies, and scales the tile's result: a decoding step then reads a quarter
of what bf16 weights would take. Few rows can't fill a GPU with tiles of columns, so the contracted dimension is shared
by several programs. Pallas on Triton; compiled for H100 and B200, run in Pallas's interpreter, never on a GPU.

Legend: M rows, K contracted (packed: its even and its odd first-dimension members apart), N columns, G groups.
"""

import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from kanawa.kernels.number_formats import FORMATS, NumberFormat, format_named
from kanawa.kernels.operation import Kernel, Operands, Tuning
from kanawa.kernels.quantized_matmul import QuantizedMatmulProblem, ReferenceQuantizedMatmul
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec

from kanawa_backends_gpu.kernels.triton_tiles import dividing, dot

_REFERENCE = ReferenceQuantizedMatmul()
_DTYPES = ("bfloat16", "float16", "float32")
_NARROWEST = 16
_WIDEST = 128
_DEEPEST = 64
_MOST_ROWS = 64
#: Programs that fill a Hopper twice over.
_PROGRAMS = 264


class QuantizedWeightMatmul(Kernel):
    """int4, nf4, int8 and float8 weights in groups; a floating lhs, which gets its gradient from the whole weight."""

    name: ClassVar[str] = "quantized_matmul.gpu.weights"
    priority: ClassVar[int] = 5
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    #: Pallas's interpreter instead of a GPU: for tests.
    interpret: ClassVar[bool] = False

    def supports(self, problem: QuantizedMatmulProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        p = problem
        fmt = format_named(p.rhs_format)
        columns = math.prod(p.rhs_shape[p.num_contracted :])
        odd = fmt.packed and p.rhs_shape[0] // p.groups % 2 != 0
        together = 0 if odd else _together(p, fmt)
        return first_refusal(
            (p.lhs_format in FORMATS, f"lhs is {p.lhs_format}; this kernel's isn't quantised"),
            (p.lhs_format not in _DTYPES, f"lhs is {p.lhs_format}; needs {', '.join(_DTYPES)}"),
            (columns % _NARROWEST != 0, f"{columns} columns aren't a multiple of {_NARROWEST}"),
            (odd, f"{p.rhs_shape[0]} in {p.groups} groups: a byte holds two of different groups"),
            (together % _NARROWEST > 0, f"{together} bytes in a column share a scale; needs {_NARROWEST} or more"),
        )

    def tunings(self, problem: QuantizedMatmulProblem, device: DeviceSpec | None) -> tuple[Tuning, ...]:
        """Returns other numbers of programs (`programs`)."""
        return ((("programs", _PROGRAMS // 2),), (("programs", 2 * _PROGRAMS),))

    def forward(self, problem: QuantizedMatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [*rows, *columns], None)."""
        p, fmt = problem, format_named(problem.rhs_format)
        columns = p.rhs_shape[p.num_contracted :]
        rows = p.lhs_shape[: len(p.lhs_shape) - p.num_contracted]
        lhs = operands["lhs"].reshape(math.prod(rows), p.rhs_shape[0], -1)
        # Strided reads of one tile would fetch all of it twice: the halves that bytes hold are set apart here.
        parts = (lhs[:, 0::2], lhs[:, 1::2]) if fmt.packed else (lhs,)
        parts = tuple(part.reshape(part.shape[0], -1) for part in parts)
        stored = operands["rhs"].reshape(parts[0].shape[1], -1)
        out = self._product(p, fmt, parts, stored, operands["rhs_scale"].reshape(p.groups, -1))
        return out.astype(p.dtype).reshape(*rows, *columns), None

    def backward(
        self,
        problem: QuantizedMatmulProblem,
        operands: Operands,
        out: jax.Array,
        residuals: None,
        cotangents: jax.Array,
    ) -> dict[str, jax.Array]:
        """Returns the cotangent of lhs, by a dense product: where one trains, rows are many and weights read once."""

        def product(lhs: jax.Array) -> jax.Array:
            return _REFERENCE.forward(problem, {**operands, "lhs": lhs})[0]

        return {"lhs": jax.vjp(product, operands["lhs"])[1](cotangents)[0]}

    def _product(
        self, p: QuantizedMatmulProblem, fmt: NumberFormat, parts: Any, stored: jax.Array, scale: jax.Array
    ) -> jax.Array:
        rows, inner = parts[0].shape
        columns = stored.shape[1]
        height = min(_MOST_ROWS, max(_NARROWEST, 1 << (rows - 1).bit_length()))
        width, depth = dividing(columns, _WIDEST), dividing(_together(p, fmt), _DEEPEST)
        steps, tiles = inner // depth, -(-rows // height) * (columns // width)
        splits = max(1, min(self.setting("programs", _PROGRAMS) // tiles, steps // 4))
        out = pl.pallas_call(
            functools.partial(
                _program, fmt=fmt, height=height, width=width, depth=depth, together=_together(p, fmt), splits=splits
            ),
            out_shape=jax.ShapeDtypeStruct((splits, rows, columns), jnp.float32 if splits > 1 else p.dtype),
            grid=(columns // width, -(-rows // height), splits),
            compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=3),
            interpret=self.interpret,
            name="quantized_weight_matmul",
        )(parts, stored, scale.astype(jnp.float32))
        return out[0] if splits == 1 else jnp.sum(out, axis=0)


def _together(p: QuantizedMatmulProblem, fmt: NumberFormat) -> int:
    """Returns how many stored values of a column, one below the other, have one scale."""
    rest = math.prod(p.rhs_shape[1 : p.num_contracted])
    return p.rhs_shape[0] // p.groups // (2 if fmt.packed else 1) * rest


def _program(
    parts: Any, stored: Any, scale: Any, out: Any, *, fmt: NumberFormat, height: int, width: int, depth: int,
    together: int, splits: int,
) -> None:  # fmt: skip
    split, columns = pl.program_id(2), pl.ds(pl.program_id(0) * width, width)
    first = pl.program_id(1) * height
    rows = pl.ds(first, height)
    real = (first + jnp.arange(height) < parts[0].shape[0])[:, None]
    steps = stored.shape[0] // depth
    share = -(-steps // splits)

    def step(index: jax.Array, total: jax.Array) -> jax.Array:
        at = pl.ds(index * depth, depth)
        raw = plgpu.load(stored.at[at, columns])
        product = jnp.zeros((height, width), jnp.float32)
        for place, part in enumerate(parts):
            left = plgpu.load(part.at[rows, at], mask=real, other=0.0)
            product += dot(left, _numbers(fmt, raw, place, left.dtype))
        return total + product * plgpu.load(scale.at[index * depth // together, columns])[None, :]

    begin = split * share
    nothing = jnp.zeros((height, width), jnp.float32)
    total = jax.lax.fori_loop(begin, jnp.minimum(begin + share, steps), step, nothing)
    plgpu.store(out.at[split, rows, columns], total.astype(out.dtype), mask=real)


def _numbers(fmt: NumberFormat, raw: jax.Array, place: int, dtype: jnp.dtype) -> jax.Array:
    """Returns the values that bytes hold, of the low (place 0) or the high half where they hold two."""
    if not fmt.packed:
        return raw.astype(dtype)
    code = (raw.astype(jnp.int32) >> (4 * place)) & 15
    if not fmt.levels:
        # Sign-extends the low four bits.
        return ((code ^ 8) - 8).astype(dtype)
    # A tree of selections by the code's bits: registers can't be looked up by an index.
    values: list[Any] = [jnp.full(code.shape, level, jnp.float32) for level in fmt.levels]
    for bit in range(4):
        high = (code >> bit) & 1 == 1
        values = [jnp.where(high, b, a) for a, b in zip(values[0::2], values[1::2], strict=True)]
    number: jax.Array = values[0]
    return number.astype(dtype)
