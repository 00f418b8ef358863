"""The code of a matmul in bfloat16 by the tiles of AMX: a work item is a block of the result.

A tile register has 16 rows of 64 bytes. One instruction multiplies 16 rows of 32 numbers by 32 rows of 16, stored as
pairs of neighbours in K, and adds the result to 16 x 16 sums in float32. Operands are packed in the registers' layout;
four tiles of sums share two tiles of each operand. Denormal numbers count as zero.

Legend: M rows, N columns, K the contracted dimension; a *group* is 16 rows or columns, a *chunk* 32 of K, a *pair* two
of K.
"""

import functools
from collections.abc import Callable

from llvmlite import ir

from kanawa_backends_cpu.kernels.matmul.native_code import (
    AMX_COLUMNS,
    AMX_DEPTH,
    AMX_ROWS,
    AMX_SQUARE,
    Place,
    Variant,
    scratch,
    store_sums,
    transposed,
)
from kanawa_backends_cpu.native.calls import Operands
from kanawa_backends_cpu.native.code import F32, I16, I32, I64, Code, i64

#: Rows or columns of a tile, numbers of K in it, and the bytes of a row.
GROUP, CHUNK, _LINE = 16, 32, 64
_I8 = ir.IntType(8)
_VOID = ir.VoidType()
#: Tile registers: sums of each half of the rows with each half of the columns, then the operands' halves.
_SUMS, _LEFTS, _RIGHTS = ((0, 1), (2, 3)), (4, 5), (6, 7)


def emit_block(variant: Variant, code: Code, buffers: Operands, item: ir.Value) -> None:
    """Emits the code of one block."""
    Block(variant, code, buffers, item).emit()


class Block:
    """A block of the result: packs its operands part by part of K, and adds the products square by square."""

    def __init__(self, variant: Variant, code: Code, buffers: Operands, item: ir.Value) -> None:
        self.variant, self.code, self.builder = variant, code, code.builder
        self.place = Place(variant, code, buffers, item)
        self.m, self.n, self.k = self.place.blocking.sizes

    def emit(self) -> None:
        """Emits the block: K part by part, then the copy of its sums into the result."""
        code, builder, place = self.code, self.builder, self.place
        lefts, rights, sums = 2 * AMX_ROWS * AMX_DEPTH, 2 * AMX_COLUMNS * AMX_DEPTH, 4 * AMX_ROWS * AMX_COLUMNS
        with scratch(code, lefts + rights + sums) as memory:
            left, right, self.sums = (code.gep(memory, i64(at), _I8) for at in (0, lefts, lefts + rights))
            self.begin()

            def part(start: ir.Value) -> None:
                depth = code.min(self.place.blocking.depth, builder.sub(self.k, start))
                self._pack(left, place.left, start, depth, (self.m, place.row, place.rows), is_left=True)
                self._pack(right, place.right, start, depth, (self.n, place.column, place.columns), is_left=False)
                first = builder.icmp_signed("==", start, i64(0))

                def squares(column: ir.Value) -> None:
                    code.loop(
                        i64(0),
                        place.rows,
                        AMX_SQUARE,
                        lambda row: self.square(left, right, depth, row, column, first),
                    )

                code.loop(i64(0), place.columns, AMX_SQUARE, squares)

            code.loop(i64(0), self.k, self.place.blocking.depth, part)
            self.end()
            store_sums(code, place, self.sums, self.n, self.variant)

    def _call(self, name: str, *arguments: ir.Value) -> None:
        """Emits an instruction of the tile unit."""
        function = self.code.library_function(f"llvm.x86.{name}", _VOID, *(argument.type for argument in arguments))
        self.builder.call(function, arguments)

    def begin(self) -> None:
        """Emits the configuration of this thread's eight tiles: 16 rows of 64 bytes each."""
        code = self.code
        asked = code.alloca_bytes(64)
        # Palette 1; bytes of a row from byte 16 on, in 16 bits, and rows from byte 48 on.
        words = [1, 0, *([_LINE | _LINE << 16 | _LINE << 32 | _LINE << 48] * 2), 0, 0, 0x1010101010101010, 0]
        for at, word in enumerate(words):
            code.store(i64(word), code.gep(asked, i64(at), I64))
        self._call("ldtilecfg", asked)

    def end(self) -> None:
        """Emits that this thread's tiles aren't used any more."""
        self._call("tilerelease")

    def _pack(
        self,
        to: ir.Value,
        source: ir.Value,
        start: ir.Value,
        depth: ir.Value,
        span: tuple[ir.Value, ir.Value, ir.Value],
        *,
        is_left: bool,
    ) -> None:
        """Emits the packing of a part of an operand: tiles [16, 16 pairs] of the left, [16 pairs, 16] of the right.

        `span` is the whole size, the first, and the count of its rows or columns.
        """
        code, builder = self.code, self.builder
        whole, first, count = span
        along_k = self.variant.transpose_b if not is_left else not self.variant.transpose_a
        step = self.k if along_k else whole

        def at(column: ir.Value, k: ir.Value) -> ir.Value:
            """Returns the pointer to a number, by its place within the block and the part."""
            column, k = builder.add(first, column), builder.add(start, k)
            major, minor = (column, k) if along_k else (k, column)
            return code.gep(source, builder.add(builder.mul(major, step), minor), I16)

        def tile(group: ir.Value, chunk: ir.Value) -> None:
            place = code.gep(to, builder.add(builder.mul(group, i64(AMX_DEPTH)), builder.mul(chunk, i64(GROUP))), I16)
            enough = builder.and_(
                builder.icmp_signed("<=", builder.add(group, i64(GROUP)), count),
                builder.icmp_signed("<=", builder.add(chunk, i64(CHUNK)), depth),
            )
            with builder.if_else(enough) as (then, otherwise):
                with then:
                    self._whole_tile(place, functools.partial(at, group, chunk), step, along_k, is_left)
                with otherwise:
                    self._part_of_tile(place, at, group, chunk, (count, depth), is_left)

        code.loop(i64(0), count, GROUP, lambda group: code.loop(i64(0), depth, CHUNK, functools.partial(tile, group)))

    def _whole_tile(
        self, to: ir.Value, corner: Callable[[], ir.Value], step: ir.Value, along_k: bool, is_left: bool
    ) -> None:
        code, builder = self.code, self.builder
        begin, halves, pairs = corner(), ir.VectorType(I16, GROUP), ir.VectorType(I32, GROUP)

        def line(i: int) -> ir.Value:
            return code.gep(begin, builder.mul(i64(i), step), I16)

        if along_k:
            rows = [builder.load(line(i), typ=pairs, align=2) for i in range(GROUP)]
        else:
            rows = [
                code.pack_pairs(*(builder.load(line(2 * i + j), typ=halves, align=2) for j in range(2)))
                for i in range(GROUP)
            ]
        if along_k != is_left:
            rows = transposed(code, rows)
        for i, row in enumerate(rows):
            builder.store(row, code.gep(to, i64(i * CHUNK), I16), align=64)

    def _part_of_tile(
        self,
        to: ir.Value,
        at: Callable[[ir.Value, ir.Value], ir.Value],
        group: ir.Value,
        chunk: ir.Value,
        ends: tuple[ir.Value, ir.Value],
        is_left: bool,
    ) -> None:
        """Emits the packing of a tile number by number; numbers beyond the operand's end are 0."""
        code, builder = self.code, self.builder

        def number(column: ir.Value, k: ir.Value) -> None:
            pair, second = builder.sdiv(k, i64(2)), builder.srem(k, i64(2))
            major, minor = (column, pair) if is_left else (pair, column)
            place = builder.add(builder.add(builder.mul(major, i64(CHUNK)), builder.mul(minor, i64(2))), second)
            from_column, from_k = builder.add(group, column), builder.add(chunk, k)
            there = builder.and_(
                *(builder.icmp_signed("<", i, end) for i, end in zip((from_column, from_k), ends, strict=True))
            )
            # The first number is there: read in its stead, one that isn't touches no memory of others.
            safe = at(*(builder.select(there, i, i64(0)) for i in (from_column, from_k)))
            value = builder.select(there, builder.load(safe, typ=I16, align=2), ir.Constant(I16, 0))
            builder.store(value, code.gep(to, place, I16), align=2)

        code.loop(
            i64(0),
            i64(GROUP),
            1,
            lambda column: code.loop(i64(0), i64(CHUNK), 1, functools.partial(number, column)),
        )

    def square(
        self, left: ir.Value, right: ir.Value, depth: ir.Value, row: ir.Value, column: ir.Value, first: ir.Value
    ) -> None:
        """Emits the addition of a part of K to 32 x 32 sums."""
        code, builder = self.code, self.builder

        def number(register: int) -> ir.Constant:
            return ir.Constant(_I8, register)

        stride = i64(4 * AMX_COLUMNS)
        places = []
        for i, registers in enumerate(_SUMS):
            for j, register in enumerate(registers):
                down = builder.mul(builder.add(row, i64(i * GROUP)), i64(AMX_COLUMNS))
                across = builder.add(column, i64(j * GROUP))
                places.append((number(register), code.gep(self.sums, builder.add(down, across), F32)))
        with builder.if_else(first) as (then, otherwise):
            with then:
                for register, _ in places:
                    self._call("tilezero", register)
            with otherwise:
                for register, place in places:
                    self._call("tileloadd64", register, place, stride)
        loads = [
            (register, code.gep(operand, builder.mul(builder.add(at, i64(i * GROUP)), i64(AMX_DEPTH)), I16))
            for operand, at, registers in ((left, row, _LEFTS), (right, column, _RIGHTS))
            for i, register in enumerate(registers)
        ]

        def step(chunk: ir.Value) -> None:
            for register, begin in loads:
                place = code.gep(begin, builder.mul(chunk, i64(GROUP)), I16)
                self._call("tileloadd64", number(register), place, i64(_LINE))
            for i, registers in enumerate(_SUMS):
                for j, register in enumerate(registers):
                    self._call("tdpbf16ps", number(register), number(_LEFTS[i]), number(_RIGHTS[j]))

        code.loop(i64(0), depth, CHUNK, step)
        for register, place in places:
            self._call("tilestored64", register, place, stride)
