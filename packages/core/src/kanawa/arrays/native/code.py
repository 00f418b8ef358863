"""Code: writes the instructions of one function, over vectors of 32-bit floats and 64-bit indices.

LLVM breaks vectors wider than the processor's into several, so that one text serves AVX-512, AVX2 and NEON.
Sums may be taken in any order; NaN and infinities are what IEEE says.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

F32, I16, I32, I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
POINTER = ir.PointerType()
#: What LLVM may do to floats: sum in any order, and round a product and a sum once. Not: believe that none is NaN.
_LOOSE = ("reassoc", "contract")
#: exp(r) for |r| <= ln(2) / 2 is 1 + r + r^2 P(r), P from the highest power down (Cephes, expf: 2 ulp).
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
#: ln(2) in two parts, the first of which times a small integer is exact.
_LN2 = (0.693359375, -2.12194440e-4)
#: Below it exp is no normal float; it is taken for zero.
_LOWEST = -87.0


def index(value: int) -> ir.Constant:
    """Returns an index that is known."""
    return ir.Constant(I64, value)


def floats(width: int) -> ir.VectorType:
    """Returns the type of so many floats."""
    return ir.VectorType(F32, width)


def constant(value: float, width: int) -> ir.Constant:
    """Returns so many floats of one value."""
    return ir.Constant(floats(width), [value] * width)


class Code:
    """Instructions at the end of one function, which is that of `builder`."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def variable(self, kind: ir.Type) -> ir.Instruction:
        """Returns a place for one value; LLVM keeps it in a register where it can."""
        # At the function's start: within a loop each turn would take more of the stack.
        with self.builder.goto_entry_block():
            return self.builder.alloca(kind)

    def memory(self, size: int) -> ir.Instruction:
        """Returns the pointer to so many bytes of the stack, whose parts may be of any kind; on a cache line."""
        place = self.variable(ir.ArrayType(ir.IntType(8), size))
        place.align = 64
        # LLVM's pointers know no kind; llvmlite's still do, and refuse others.
        place.type = POINTER
        return place

    def get(self, place: ir.Value, kind: ir.Type) -> ir.Value:
        """Returns the value at a place, aligned as a number of it is."""
        align = 4 if kind in (F32, I32) or isinstance(kind, ir.VectorType) else 8
        return self.builder.load(place, typ=kind, align=2 if _of_halves(kind) else align)

    def put(self, value: ir.Value, place: ir.Value) -> None:
        """Stores a value at a place, aligned as a number of it is."""
        self.builder.store(value, place, align=4 if value.type != I64 else 8)

    def at(self, pointer: ir.Value, offset: ir.Value, kind: ir.Type) -> ir.Value:
        """Returns the pointer to element `offset` of numbers of a kind."""
        return self.builder.gep(pointer, [offset], source_etype=kind)

    def loop(self, start: ir.Value, stop: ir.Value, step: int | ir.Value, body: Callable[[ir.Value], None]) -> None:
        """Writes `for i in range(start, stop, step): body(i)`."""
        builder, i = self.builder, self.variable(I64)
        builder.store(start, i)
        head, inner, done = (builder.append_basic_block(name) for name in ("head", "body", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        now = builder.load(i, typ=I64)
        builder.cbranch(builder.icmp_signed("<", now, stop), inner, done)
        builder.position_at_end(inner)
        body(now)
        builder.store(builder.add(now, index(step) if isinstance(step, int) else step), i)
        builder.branch(head)
        builder.position_at_end(done)

    def least(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Returns the smaller of two indices."""
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def most(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Returns the larger of two indices."""
        return self.builder.select(self.builder.icmp_signed(">", a, b), a, b)

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Returns a + b of floats."""
        return self.builder.fadd(a, b, flags=_LOOSE)

    def times(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Returns a * b of floats."""
        return self.builder.fmul(a, b, flags=_LOOSE)

    def fused(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Returns a * b + c of floats, rounded once where the processor can."""
        function = self._intrinsic("fmuladd", a.type, [a.type] * 3, a.type)
        return self.builder.call(function, [a, b, c])

    def many(self, value: ir.Value, width: int) -> ir.Value:
        """Returns so many floats of one value."""
        vector = self.builder.insert_element(ir.Constant(floats(width), ir.Undefined), value, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, width), [0] * width)
        return self.builder.shuffle_vector(vector, vector, zeros)

    def total(self, vector: ir.Value) -> ir.Value:
        """Returns the sum of a vector's floats."""
        function = self._intrinsic("vector.reduce.fadd", F32, [F32, vector.type], vector.type)
        return self.builder.call(function, [ir.Constant(F32, 0.0), vector], fastmath=_LOOSE)

    def highest(self, vector: ir.Value) -> ir.Value:
        """Returns the largest of a vector's floats; NaN is no float's better."""
        return self.builder.call(self._intrinsic("vector.reduce.fmax", F32, [vector.type], vector.type), [vector])

    def higher(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Returns the larger of two floats; NaN is no float's better."""
        return self.builder.call(self._intrinsic("maxnum", F32, [F32, F32], F32), [a, b])

    def exp(self, x: ir.Value) -> ir.Value:
        """Returns e to the power of each float: NaN for NaN, zero below -87, wrong above 88."""
        builder, width = self.builder, x.type.count
        kind, bits = x.type, ir.VectorType(I32, width)
        nearest = self._intrinsic("rint", kind, [kind], kind)
        twos = builder.call(nearest, [self.times(x, constant(1.44269504088896341, width))])
        rest = x
        for part in _LN2:
            rest = self.add(rest, self.times(twos, constant(-part, width)))
        series = constant(_EXP[0], width)
        for coefficient in _EXP[1:]:
            series = self.add(self.times(series, rest), constant(coefficient, width))
        series = self.add(self.add(self.times(series, self.times(rest, rest)), rest), constant(1.0, width))
        # 2 ** n is n in the exponent's bits.
        exponent = builder.add(builder.fptosi(twos, bits), ir.Constant(bits, [127] * width))
        power = builder.bitcast(builder.shl(exponent, ir.Constant(bits, [23] * width)), kind)
        low = builder.fcmp_ordered("<", x, constant(_LOWEST, width))
        result = builder.select(low, constant(0.0, width), self.times(series, power))
        # A NaN has no integer: LLVM may make anything of what is computed with one.
        return builder.select(builder.fcmp_unordered("uno", x, x), x, result)

    def prefetch(self, pointer: ir.Value) -> None:
        """Asks for the cache line at a pointer, to be read soon."""
        kinds, flags = [POINTER, I32, I32, I32], (0, 3, 1)
        function = self._intrinsic("prefetch.p0", ir.VoidType(), kinds)
        self.builder.call(function, [pointer, *(ir.Constant(I32, flag) for flag in flags)])

    def widened(self, halves: ir.Value) -> ir.Value:
        """Returns bfloat16 numbers, given as 16-bit integers of their bits, as floats."""
        bits = ir.VectorType(I32, halves.type.count)
        upper = self.builder.shl(self.builder.zext(halves, bits), ir.Constant(bits, [16] * halves.type.count))
        return self.builder.bitcast(upper, floats(halves.type.count))

    def paired(self, first: ir.Value, second: ir.Value) -> ir.Value:
        """Returns 16-bit numbers of two vectors as 32-bit ones, the first's in the lower half of each."""
        kind = ir.VectorType(I32, first.type.count)
        upper = self.builder.shl(self.builder.zext(second, kind), ir.Constant(kind, [16] * first.type.count))
        return self.builder.or_(self.builder.zext(first, kind), upper)

    def narrowed(self, numbers: ir.Value) -> ir.Value:
        """Returns floats as the bits of the nearest bfloat16 numbers, even ones of two that are as near."""
        builder, count = self.builder, numbers.type.count
        kind = ir.VectorType(I32, count)
        bits = builder.bitcast(numbers, kind)

        def known(value: int) -> ir.Constant:
            return ir.Constant(kind, [value] * count)

        odd = builder.and_(builder.lshr(bits, known(16)), known(1))
        nearest = builder.add(bits, builder.add(odd, known(0x7FFF)))
        # Added to, a NaN's bits could become those of an infinity, or of zero.
        quiet = builder.or_(bits, known(0x400000))
        chosen = builder.select(builder.fcmp_unordered("uno", numbers, numbers), quiet, nearest)
        return builder.trunc(builder.lshr(chosen, known(16)), ir.VectorType(I16, count))

    def library(self, name: str, result: ir.Type, *given: ir.Type) -> ir.Function:
        """Returns a function of the C library."""
        module = self.builder.module
        return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, given), name)

    def _intrinsic(self, name: str, result: ir.Type, given: list[ir.Type], over: ir.Type | None = None) -> ir.Function:
        suffix = "" if over is None else f".v{over.count}f32" if isinstance(over, ir.VectorType) else ".f32"
        module, full = self.builder.module, f"llvm.{name}{suffix}"
        return module.globals.get(full) or ir.Function(module, ir.FunctionType(result, given), full)


def _of_halves(kind: Any) -> bool:
    return isinstance(kind, ir.VectorType) and kind.element == I16
