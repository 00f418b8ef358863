"""The code of a matmul in bfloat16 by AVX-512's dot products of pairs: a work item is a block of the result.

One instruction (`vdpbf16ps`) multiplies 16 pairs of neighbours in K by one pair and adds both to 16 sums in float32:
twice the multiplications of float32's on processors that start one a cycle, such as AMD's since Zen 4. Operands are
packed as for AMX's tiles. Denormal numbers count as zero.

Legend: as in `native_amx`.
"""

from llvmlite import ir

from kanawa_backends_cpu.kernels.matmul import native_amx
from kanawa_backends_cpu.kernels.matmul.native_amx import CHUNK, GROUP
from kanawa_backends_cpu.kernels.matmul.native_code import AMX_COLUMNS, AMX_DEPTH, AMX_SQUARE, Variant
from kanawa_backends_cpu.native.calls import Operands
from kanawa_backends_cpu.native.code import F32, I16, I32, Code, f32_constant, f32_vector, i64

#: Rows whose sums are in registers: by two vectors they are 24 of 32 registers, and a square has 32 rows.
_ROWS = 8
_SUMS = f32_vector(GROUP)


class _Bfloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bfloat)

    def __hash__(self) -> int:
        return hash(_Bfloat)


_PAIRS = ir.VectorType(_Bfloat(), 2 * GROUP)


def emit_block(variant: Variant, code: Code, buffers: Operands, item: ir.Value) -> None:
    """Emits the code of one block."""
    _Block(variant, code, buffers, item).emit()


class _Block(native_amx.Block):
    def begin(self) -> None:
        """Emits nothing: vectors need no configuration."""

    def end(self) -> None:
        """Emits nothing."""

    def square(
        self, left: ir.Value, right: ir.Value, depth: ir.Value, row: ir.Value, column: ir.Value, first: ir.Value
    ) -> None:
        """Emits the addition of a part of K to 32 x 32 sums, some rows at a time."""
        code, builder = self.code, self.builder
        rights = [
            code.gep(right, builder.mul(builder.add(column, i64(i * GROUP)), i64(AMX_DEPTH)), I16) for i in range(2)
        ]
        for begin in range(0, AMX_SQUARE, _ROWS):
            group = builder.add(row, i64(begin // GROUP * GROUP))
            lefts = code.gep(left, builder.mul(group, i64(AMX_DEPTH)), I16)
            lefts = code.gep(lefts, i64(begin % GROUP * CHUNK), I16)
            down = builder.mul(builder.add(row, i64(begin)), i64(AMX_COLUMNS))
            sums = code.gep(self.sums, builder.add(down, column), F32)
            self._rows(lefts, rights, sums, depth, first)

    def _rows(self, left: ir.Value, rights: list[ir.Value], to: ir.Value, depth: ir.Value, first: ir.Value) -> None:
        code, builder = self.code, self.builder
        sums = [[code.alloca(_SUMS) for _ in rights] for _ in range(_ROWS)]
        places = [
            (variable, code.gep(to, i64(i * AMX_COLUMNS + j * GROUP), F32))
            for i, each in enumerate(sums)
            for j, variable in enumerate(each)
        ]
        with builder.if_else(first) as (then, otherwise):
            with then:
                for variable, _ in places:
                    builder.store(f32_constant(0.0, GROUP), variable)
            with otherwise:
                for variable, place in places:
                    builder.store(code.load(place, _SUMS), variable)

        def step(chunk: ir.Value) -> None:
            offset = builder.mul(chunk, i64(GROUP))
            mine, theirs = code.gep(left, offset, I16), [code.gep(right, offset, I16) for right in rights]

            def pair(p: ir.Value) -> None:
                line = builder.mul(p, i64(CHUNK))
                vectors = [
                    as_pairs(code, builder.load(code.gep(each, line, I16), typ=ir.VectorType(I32, GROUP), align=64))
                    for each in theirs
                ]
                for i, each in enumerate(sums):
                    # A pair as the bits of a float.
                    number = code.load(code.gep(code.gep(mine, i64(i * CHUNK), I16), p, F32), F32)
                    many = as_pairs(code, code.splat(number, GROUP))
                    for variable, vector in zip(each, vectors, strict=True):
                        add_pairs(code, variable, many, vector)

            code.loop(i64(0), i64(GROUP), 1, pair)

        code.loop(i64(0), depth, CHUNK, step)
        for variable, place in places:
            code.store(builder.load(variable, typ=_SUMS), place)


def as_pairs(code: Code, vector: ir.Value) -> ir.Value:
    """Returns a vector of 16 words of 32 bits as pairs of bfloat16."""
    return code.builder.bitcast(vector, _PAIRS)


def add_pairs(code: Code, variable: ir.Value, left: ir.Value, right: ir.Value) -> None:
    """Emits the addition of 16 dot products of pairs to the 16 floats of a variable."""
    multiply = code.library_function("llvm.x86.avx512bf16.dpbf16ps.512", _SUMS, _SUMS, _PAIRS, _PAIRS)
    sums = code.builder.load(variable, typ=_SUMS)
    code.builder.store(code.builder.call(multiply, [sums, left, right]), variable)
