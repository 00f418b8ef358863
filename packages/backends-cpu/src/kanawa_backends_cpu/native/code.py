"""Code: emits the instructions of one function, over vectors of 32-bit floats and 64-bit indices.

LLVM splits vectors wider than the processor's registers, so that one text serves AVX-512, AVX2 and NEON.
Sums may be reordered; NaN and infinities follow IEEE 754.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

F32, I16, I32, I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
POINTER = ir.PointerType()
#: What LLVM may do to floats: reorder sums, and fuse a multiplication with an addition. Not: assume that none is NaN.
_FAST_MATH: tuple[str, ...] = ("reassoc", "contract")
#: exp(r) for |r| <= ln(2) / 2 is 1 + r + r^2 P(r), P from the highest power down (Cephes, expf: 2 ulp).
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
#: ln(2) in two parts, the first of which times a small integer is exact.
_LN2 = (0.693359375, -2.12194440e-4)
#: Below it exp is subnormal; zero is returned instead.
_LOWEST = -87.0


def i64(value: int) -> ir.Constant:
    """Returns a constant index."""
    return ir.Constant(I64, value)


def f32_vector(width: int) -> ir.VectorType:
    """Returns the type of a vector of `width` floats."""
    return ir.VectorType(F32, width)


def f32_constant(value: float, width: int) -> ir.Constant:
    """Returns a constant vector of `width` equal floats."""
    return ir.Constant(f32_vector(width), [value] * width)


class Code:
    """Appends instructions to the function of `builder`; `fast_math` is what LLVM may do to its floats."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder, self.fast_math = builder, _FAST_MATH

    def alloca(self, kind: ir.Type) -> ir.Instruction:
        """Returns a pointer to one value of a type on the stack; LLVM holds it in a register where it can."""
        # In the entry block: within a loop, each iteration would take more of the stack.
        with self.builder.goto_entry_block():
            return self.builder.alloca(kind)

    def alloca_bytes(self, size: int) -> ir.Instruction:
        """Returns a pointer to `size` untyped bytes on the stack, aligned to a cache line."""
        place = self.alloca(ir.ArrayType(ir.IntType(8), size))
        place.align = 64
        # LLVM's pointers are opaque; llvmlite's are typed here, and other types would be refused.
        place.type = POINTER
        return place

    def load(self, pointer: ir.Value, kind: ir.Type) -> ir.Value:
        """Returns the value of a type at a pointer, which is aligned to its elements."""
        align = 4 if kind in (F32, I32) or isinstance(kind, ir.VectorType) else 8
        return self.builder.load(pointer, typ=kind, align=2 if _is_16_bit(kind) else align)

    def store(self, value: ir.Value, pointer: ir.Value) -> None:
        """Stores a value at a pointer, which is aligned to its elements."""
        self.builder.store(value, pointer, align=4 if value.type != I64 else 8)

    def gep(self, pointer: ir.Value, offset: ir.Value, kind: ir.Type) -> ir.Value:
        """Returns the pointer to element `offset` of an array of a type."""
        return self.builder.gep(pointer, [offset], source_etype=kind)

    def loop(self, start: ir.Value, stop: ir.Value, step: int | ir.Value, body: Callable[[ir.Value], None]) -> None:
        """Emits `for i in range(start, stop, step): body(i)`."""
        builder, i = self.builder, self.alloca(I64)
        builder.store(start, i)
        head, inner, done = (builder.append_basic_block(name) for name in ("head", "body", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        now = builder.load(i, typ=I64)
        builder.cbranch(builder.icmp_signed("<", now, stop), inner, done)
        builder.position_at_end(inner)
        body(now)
        builder.store(builder.add(now, i64(step) if isinstance(step, int) else step), i)
        builder.branch(head)
        builder.position_at_end(done)

    def min(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Returns the smaller of two indices."""
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def max(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Returns the larger of two indices."""
        return self.builder.select(self.builder.icmp_signed(">", a, b), a, b)

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Returns a + b of floats."""
        return self.builder.fadd(a, b, flags=self.fast_math)

    def mul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Returns a * b of floats."""
        return self.builder.fmul(a, b, flags=self.fast_math)

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Returns a * b + c of floats, rounded once where the processor can."""
        function = self._intrinsic("fmuladd", a.type, [a.type] * 3, a.type)
        return self.builder.call(function, [a, b, c])

    def splat(self, value: ir.Value, width: int) -> ir.Value:
        """Returns a vector of `width` copies of a float."""
        vector = self.builder.insert_element(ir.Constant(f32_vector(width), ir.Undefined), value, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, width), [0] * width)
        return self.builder.shuffle_vector(vector, vector, zeros)

    def reduce_sum(self, vector: ir.Value) -> ir.Value:
        """Returns the sum of a vector's floats."""
        function = self._intrinsic("vector.reduce.fadd", F32, [F32, vector.type], vector.type)
        return self.builder.call(function, [ir.Constant(F32, 0.0), vector], fastmath=self.fast_math)

    def reduce_max(self, vector: ir.Value) -> ir.Value:
        """Returns the largest of a vector's floats, NaN ignored."""
        return self.builder.call(self._intrinsic("vector.reduce.fmax", F32, [vector.type], vector.type), [vector])

    def maxnum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Returns the larger of two floats, NaN ignored."""
        return self.builder.call(self._intrinsic("maxnum", F32, [F32, F32], F32), [a, b])

    def ceil(self, x: ir.Value) -> ir.Value:
        """Returns the smallest whole number that is at least a float."""
        return self.builder.call(self._intrinsic("ceil", F32, [F32], F32), [x])

    def exp(self, x: ir.Value) -> ir.Value:
        """Returns e to the power of each float: NaN for NaN, zero below -87, wrong above 88."""
        builder, width = self.builder, x.type.count
        kind, bits = x.type, ir.VectorType(I32, width)
        nearest = self._intrinsic("rint", kind, [kind], kind)
        twos = builder.call(nearest, [self.mul(x, f32_constant(1.44269504088896341, width))])
        rest = x
        for part in _LN2:
            rest = self.fma(twos, f32_constant(-part, width), rest)
        series = f32_constant(_EXP[0], width)
        for coefficient in _EXP[1:]:
            series = self.fma(series, rest, f32_constant(coefficient, width))
        series = self.add(self.fma(series, self.mul(rest, rest), rest), f32_constant(1.0, width))
        # 2 ** n is n in the exponent's bits.
        exponent = builder.add(builder.fptosi(twos, bits), ir.Constant(bits, [127] * width))
        power = builder.bitcast(builder.shl(exponent, ir.Constant(bits, [23] * width)), kind)
        low = builder.fcmp_ordered("<", x, f32_constant(_LOWEST, width))
        result = builder.select(low, f32_constant(0.0, width), self.mul(series, power))
        # NaN converts to no integer: what is computed with one is undefined.
        return builder.select(builder.fcmp_unordered("uno", x, x), x, result)

    def prefetch(self, pointer: ir.Value, level: int = 1) -> None:
        """Prefetches the cache line at a pointer into a cache, 1 to 3; the first one has few lines on their way."""
        kinds, flags = [POINTER, I32, I32, I32], (0, 4 - level, 1)
        function = self._intrinsic("prefetch.p0", ir.VoidType(), kinds)
        self.builder.call(function, [pointer, *(ir.Constant(I32, flag) for flag in flags)])

    def bf16_to_f32(self, bits: ir.Value) -> ir.Value:
        """Returns a vector of bf16 numbers, passed as 16-bit integers of their bits, as floats."""
        kind = ir.VectorType(I32, bits.type.count)
        upper = self.builder.shl(self.builder.zext(bits, kind), ir.Constant(kind, [16] * bits.type.count))
        return self.builder.bitcast(upper, f32_vector(bits.type.count))

    def pack_pairs(self, first: ir.Value, second: ir.Value) -> ir.Value:
        """Returns two vectors of 16-bit integers as one of 32-bit integers, the first's in the lower 16 bits."""
        kind = ir.VectorType(I32, first.type.count)
        upper = self.builder.shl(self.builder.zext(second, kind), ir.Constant(kind, [16] * first.type.count))
        return self.builder.or_(self.builder.zext(first, kind), upper)

    def f32_to_bf16(self, numbers: ir.Value) -> ir.Value:
        """Returns floats as the bits of the nearest bf16 numbers, ties to even."""
        builder, count = self.builder, numbers.type.count
        kind = ir.VectorType(I32, count)
        bits = builder.bitcast(numbers, kind)

        def splat(value: int) -> ir.Constant:
            return ir.Constant(kind, [value] * count)

        odd = builder.and_(builder.lshr(bits, splat(16)), splat(1))
        nearest = builder.add(bits, builder.add(odd, splat(0x7FFF)))
        # Rounding could carry a NaN's bits to those of an infinity, or of zero.
        quiet = builder.or_(bits, splat(0x400000))
        chosen = builder.select(builder.fcmp_unordered("uno", numbers, numbers), quiet, nearest)
        return builder.trunc(builder.lshr(chosen, splat(16)), ir.VectorType(I16, count))

    def library_function(self, name: str, result: ir.Type, *arguments: ir.Type) -> ir.Function:
        """Returns a function of the C library."""
        module = self.builder.module
        return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments), name)

    def _intrinsic(
        self, name: str, result: ir.Type, arguments: list[ir.Type], over: ir.Type | None = None
    ) -> ir.Function:
        suffix = "" if over is None else f".v{over.count}f32" if isinstance(over, ir.VectorType) else ".f32"
        module, full = self.builder.module, f"llvm.{name}{suffix}"
        return module.globals.get(full) or ir.Function(module, ir.FunctionType(result, arguments), full)


def _is_16_bit(kind: Any) -> bool:
    return isinstance(kind, ir.VectorType) and kind.element == I16
