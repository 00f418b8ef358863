"""The code of a matmul in float32: a work item is a block of the result.

A block's right operand is packed into panels as wide as the part of the result that registers hold (Goto and van de
Geijn, Anatomy of high-performance matrix multiplication, 2008). Packing also transposes, and converts bfloat16 to
float32. Sums are float32.

Legend: M rows, N columns, K the contracted dimension; a *tile* is the part of the result in registers.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator

from llvmlite import ir

from kanawa_backends_cpu.native.calls import Operands
from kanawa_backends_cpu.native.code import F32, I16, I32, I64, POINTER, Code, f32_constant, f32_vector, i64

#: Rows of a tile: with four vectors of AVX-512 or NEON, or two of AVX2, its sums fill the registers.
TILE_ROWS = 6
#: The largest block's rows and columns, and how much of K is packed at a time: the left operand's part of a tile stays
#: in the first-level cache, the right operand's part of a block in the second.
BLOCK_ROWS, BLOCK_COLUMNS, DEPTH = 504, 384, 192
#: Floats from one step of K to the next in a tile of a transposed left operand.
_LINE = 8
#: Floats between rows of a packed left operand, so that they don't share the first-level cache's sets.
_APART = 16
#: The same with AMX, and the rows and columns of four of its tiles.
AMX_ROWS, AMX_COLUMNS, AMX_DEPTH, AMX_SQUARE = 256, 256, 512, 32
#: With pairs in vectors, 32 columns of a part of K are to fit half of the first-level cache.
PAIRS_DEPTH = 256
#: How many blocks' memory is cached: as many threads as compute at a time.
_CACHED = 16
#: Which of the call's buffers is which.
LEFT, RIGHT, BLOCKS, RESULT = 0, 1, 2, 3


@dataclasses.dataclass(frozen=True)
class Variant:
    """What a function is compiled for: operands' layouts, dtypes, and the processor's registers."""

    transpose_a: bool
    transpose_b: bool
    bf16_operands: bool
    bf16_result: bool
    lanes: int
    vectors: int
    amx: bool = False
    #: Multiplies bfloat16 in pairs by vectors (AVX512_BF16).
    pairs: bool = False

    @property
    def packs_pairs(self) -> bool:
        """Whether operands are packed in pairs of neighbours in K, in squares of AMX."""
        return self.amx or self.pairs

    @property
    def tile_columns(self) -> int:
        """Columns of a tile."""
        return self.lanes * self.vectors

    @property
    def tile(self) -> tuple[int, int]:
        """A block's rows and columns are multiples of these."""
        return (AMX_SQUARE, AMX_SQUARE) if self.packs_pairs else (TILE_ROWS, self.tile_columns)

    @property
    def max_block(self) -> tuple[int, int]:
        """The largest block's rows and columns."""
        return (AMX_ROWS, AMX_COLUMNS) if self.packs_pairs else (BLOCK_ROWS, BLOCK_COLUMNS)

    @property
    def depth(self) -> int:
        """The largest part of K that is packed at a time."""
        return PAIRS_DEPTH if self.pairs else AMX_DEPTH if self.amx else DEPTH

    @property
    def depth_unit(self) -> int:
        """Every part of K but the last is a multiple of it."""
        return AMX_SQUARE if self.packs_pairs else 1


@dataclasses.dataclass(frozen=True)
class Blocking:
    """A result's blocks: M, N and K; a block's rows and columns, and its part of K; blocks across, and in total."""

    sizes: tuple[ir.Value, ir.Value, ir.Value]
    block: tuple[ir.Value, ir.Value]
    depth: ir.Value
    across: ir.Value
    total: ir.Value


def emit_blocking(variant: Variant, code: Code, buffers: Operands) -> Blocking:
    """Emits the sizes of blocks.

    Buffers are left [B, M, K], right [B, K, N], int32 [3] with a block's rows, columns and part of K, and the result.
    """
    builder = code.builder
    m, n = (buffers.size(RESULT, axis) for axis in (1, 2))
    k = buffers.size(LEFT, 1 if variant.transpose_a else 2)
    pointers = (code.gep(buffers.data[BLOCKS], i64(i), I32) for i in range(3))
    *block, depth = (
        # Clamped, so that packed operands fit their memory.
        code.max(code.min(builder.sext(code.load(place, I32), I64), i64(most)), i64(1))
        for place, most in zip(pointers, (*variant.max_block, variant.depth), strict=True)
    )
    down, across = (_blocks(code, size, each) for size, each in zip((m, n), block, strict=True))
    total = builder.mul(buffers.size(RESULT, 0), builder.mul(down, across))
    return Blocking((m, n, k), (block[0], block[1]), depth, across, total)


def _blocks(code: Code, size: ir.Value, each: ir.Value) -> ir.Value:
    return code.builder.sdiv(code.builder.add(size, code.builder.sub(each, i64(1))), each)


def emit_block(variant: Variant, code: Code, buffers: Operands, item: ir.Value) -> None:
    """Emits the code of one block."""
    _Block(variant, code, buffers, item).emit()


class Place:
    """A block's position: its first row and column, its numbers of both, and pointers to its operands and result."""

    def __init__(self, variant: Variant, code: Code, buffers: Operands, item: ir.Value) -> None:
        builder, self.blocking = code.builder, emit_blocking(variant, code, buffers)
        (m, n, k), (rows, columns) = self.blocking.sizes, self.blocking.block
        each = builder.mul(_blocks(code, m, rows), self.blocking.across)
        batch, within = builder.sdiv(item, each), builder.srem(item, each)
        self.row = builder.mul(builder.sdiv(within, self.blocking.across), rows)
        self.column = builder.mul(builder.srem(within, self.blocking.across), columns)
        self.rows = code.min(rows, builder.sub(m, self.row))
        self.columns = code.min(columns, builder.sub(n, self.column))
        types = (I16 if variant.bf16_operands else F32, I16 if variant.bf16_result else F32)
        self.left, self.right, self.result = (
            code.gep(buffers.data[buffer], builder.mul(batch, builder.mul(*sizes)), kind)
            for buffer, sizes, kind in ((LEFT, (m, k), types[0]), (RIGHT, (k, n), types[0]), (RESULT, (m, n), types[1]))
        )


@contextlib.contextmanager
def scratch(code: Code, size: int) -> Iterator[ir.Value]:
    """Emits the allocation of so many bytes, aligned to a cache line, and their release.

    Released memory is cached for the next block: the allocator's would be in no cache of the processor.
    """
    builder, memory = code.builder, code.alloca(I64)
    kind, none = ir.ArrayType(I64, _CACHED), i64(0)
    cached = ir.GlobalVariable(builder.module, kind, "cached")
    cached.linkage, cached.initializer = "internal", ir.Constant(kind, None)
    cached.type = POINTER
    builder.store(none, memory)

    def has() -> ir.Value:
        return builder.icmp_signed("!=", builder.load(memory, typ=I64), none)

    def is_there(place: ir.Value) -> ir.Value:
        return builder.icmp_signed("!=", builder.load_atomic(place, "monotonic", 8, typ=I64), none)

    def take(i: ir.Value) -> None:
        place = code.gep(cached, i, I64)
        with builder.if_then(builder.and_(builder.not_(has()), is_there(place))):
            builder.store(builder.atomic_rmw("xchg", place, none, "acq_rel"), memory)

    def put_back(i: ir.Value) -> None:
        place = code.gep(cached, i, I64)
        with builder.if_then(builder.and_(has(), builder.not_(is_there(place)))):
            # Another thread may have stored its own meanwhile: this one places it next.
            builder.store(builder.atomic_rmw("xchg", place, builder.load(memory, typ=I64), "acq_rel"), memory)

    code.loop(none, i64(_CACHED), 1, take)
    with builder.if_then(builder.not_(has())):
        allocated = builder.call(code.library_function("malloc", POINTER, I64), [i64(size + 64)])
        builder.store(builder.ptrtoint(allocated, I64), memory)
    aligned = builder.and_(builder.add(builder.load(memory, typ=I64), i64(63)), i64(-64))
    yield builder.inttoptr(aligned, POINTER)
    code.loop(none, i64(_CACHED), 1, put_back)
    with builder.if_then(has()):
        rest = builder.inttoptr(builder.load(memory, typ=I64), POINTER)
        builder.call(code.library_function("free", ir.VoidType(), POINTER), [rest])


def store_sums(code: Code, place: Place, sums: ir.Value, n: ir.Value, variant: Variant) -> None:
    """Emits the copy of a block's sums, in rows of the largest block's columns, into the result of `n` columns."""
    builder, lanes, kind = code.builder, variant.lanes, I16 if variant.bf16_result else F32
    whole = builder.and_(place.columns, i64(-lanes))

    def row(i: ir.Value) -> None:
        source = code.gep(sums, builder.mul(i, i64(variant.max_block[1])), F32)
        to = code.gep(place.result, builder.add(builder.mul(builder.add(place.row, i), n), place.column), kind)

        def each(lanes: int, j: ir.Value) -> None:
            numbers = code.load(code.gep(source, j, F32), f32_vector(lanes))
            if variant.bf16_result:
                builder.store(code.f32_to_bf16(numbers), code.gep(to, j, I16), align=2)
            else:
                code.store(numbers, code.gep(to, j, F32))

        code.loop(i64(0), whole, lanes, functools.partial(each, lanes))
        code.loop(whole, place.columns, 1, functools.partial(each, 1))

    code.loop(i64(0), place.rows, 1, row)


def transposed(code: Code, rows: list[ir.Value]) -> list[ir.Value]:
    """Returns the columns of a square, given its rows as vectors: halves are exchanged, then quarters, and so on."""
    lanes, distance = len(rows), 1
    while distance < lanes:
        masks = [
            [j if not j & distance else j - distance + lanes for j in range(lanes)],
            [j + distance if not j & distance else j + lanes for j in range(lanes)],
        ]
        shuffles = [ir.Constant(ir.VectorType(I32, lanes), mask) for mask in masks]
        now = list(rows)
        for i in range(lanes):
            if not i & distance:
                for place, shuffle in zip((i, i + distance), shuffles, strict=True):
                    now[place] = code.builder.shuffle_vector(rows[i], rows[i + distance], shuffle)
        rows, distance = now, 2 * distance
    return rows


class _Block:
    def __init__(self, variant: Variant, code: Code, buffers: Operands, item: ir.Value) -> None:
        self.variant, self.code, self.builder = variant, code, code.builder
        self.place = Place(variant, code, buffers, item)
        self.m, self.n, self.k = self.place.blocking.sizes
        self.kind = I16 if variant.bf16_operands else F32
        self.wide = f32_vector(variant.lanes)

    def emit(self) -> None:
        code, builder = self.code, self.builder
        tile = self.variant.tile_columns
        sizes = [BLOCK_COLUMNS * DEPTH]
        sizes += [_LINE * DEPTH if self.variant.transpose_a else TILE_ROWS * (DEPTH + _APART)]
        # What is rounded needs all of its sum first.
        sizes += [BLOCK_ROWS * BLOCK_COLUMNS] if self.variant.bf16_result else []
        with scratch(code, 4 * sum(sizes)) as memory:
            self.panels, *others = (code.gep(memory, i64(sum(sizes[:i])), F32) for i in range(len(sizes)))
            self.packed = others.pop(0)
            self.sums = others.pop(0) if self.variant.bf16_result else None
            self.spare = None if self.sums is not None else code.alloca_bytes(4 * TILE_ROWS * tile)

            def part(start: ir.Value) -> None:
                depth = code.min(self.place.blocking.depth, builder.sub(self.k, start))
                code.loop(i64(0), self.place.columns, tile, lambda column: self._pack_right(start, depth, column))
                first = builder.icmp_signed("==", start, i64(0))

                def rows(row: ir.Value) -> None:
                    self._pack_left(start, depth, row)
                    code.loop(i64(0), self.place.columns, tile, lambda column: self._tile(depth, row, column, first))

                code.loop(i64(0), self.place.rows, TILE_ROWS, rows)

            code.loop(i64(0), self.k, self.place.blocking.depth, part)
            if self.sums is not None:
                store_sums(code, self.place, self.sums, self.n, self.variant)

    def _number(self, source: ir.Value) -> ir.Value:
        """Returns one number of an operand as a float."""
        if not self.variant.bf16_operands:
            return self.code.load(source, F32)
        half = self.builder.load(source, typ=I16, align=2)
        return self.builder.bitcast(self.builder.shl(self.builder.zext(half, I32), ir.Constant(I32, 16)), F32)

    def _vector(self, source: ir.Value, width: int | None = None) -> ir.Value:
        width = width or self.variant.lanes
        if not self.variant.bf16_operands:
            return self.code.load(source, f32_vector(width))
        return self.code.bf16_to_f32(self.code.load(source, ir.VectorType(I16, width)))

    def _line(self, source: ir.Value, to: ir.Value, count: ir.Value) -> None:
        """Emits the copy of `count` contiguous numbers, as floats."""
        code, builder, lanes = self.code, self.builder, self.variant.lanes
        whole = builder.and_(count, i64(-lanes))
        code.loop(
            i64(0),
            whole,
            lanes,
            lambda i: code.store(self._vector(code.gep(source, i, self.kind)), code.gep(to, i, F32)),
        )
        code.loop(
            whole, count, 1, lambda i: code.store(self._number(code.gep(source, i, self.kind)), code.gep(to, i, F32))
        )

    def _pack_left(self, start: ir.Value, depth: ir.Value, row: ir.Value) -> None:
        """Emits the packing of a tile's rows as floats: [rows, DEPTH + _APART], or [depth, _LINE] if transposed.

        Rows beyond the last repeat it: what they sum is dropped.
        """
        code, builder, place = self.code, self.builder, self.place
        last = builder.sub(place.rows, i64(1))
        if not self.variant.transpose_a:

            def copy(i: ir.Value) -> None:
                at = builder.add(place.row, code.min(builder.add(row, i), last))
                source = code.gep(place.left, builder.add(builder.mul(at, self.k), start), self.kind)
                self._line(source, code.gep(self.packed, builder.mul(i, i64(DEPTH + _APART)), F32), depth)

            code.loop(i64(0), i64(TILE_ROWS), 1, copy)
            return

        def source(k: ir.Value) -> ir.Value:
            return code.gep(place.left, builder.add(builder.mul(builder.add(start, k), self.m), place.row), self.kind)

        def whole(k: ir.Value) -> None:
            numbers = self._vector(code.gep(source(k), row, self.kind), _LINE)
            code.store(numbers, code.gep(self.packed, builder.mul(k, i64(_LINE)), F32))

        def rest(k: ir.Value) -> None:
            for i in range(TILE_ROWS):
                number = self._number(code.gep(source(k), code.min(builder.add(row, i64(i)), last), self.kind))
                code.store(number, code.gep(self.packed, builder.add(builder.mul(k, i64(_LINE)), i64(i)), F32))

        end = builder.add(builder.add(place.row, row), i64(_LINE))
        with builder.if_else(builder.icmp_signed("<=", end, self.m)) as (then, otherwise):
            with then:
                code.loop(i64(0), depth, 1, whole)
            with otherwise:
                code.loop(i64(0), depth, 1, rest)

    def _pack_right(self, start: ir.Value, depth: ir.Value, column: ir.Value) -> None:
        """Emits the packing of one panel, [depth, tile columns]; columns beyond the last repeat it, or are 0."""
        code, builder, place, tile = self.code, self.builder, self.place, self.variant.tile_columns
        panel = code.gep(self.panels, builder.mul(column, i64(DEPTH)), F32)
        left = builder.sub(place.columns, column)
        at = builder.add(place.column, column)
        if self.variant.transpose_b:
            self._pack_transposed(start, depth, panel, at, left)
            return

        def whole(i: ir.Value) -> None:
            source = code.gep(place.right, builder.add(builder.mul(builder.add(start, i), self.n), at), self.kind)
            to = code.gep(panel, builder.mul(i, i64(tile)), F32)
            for v in range(0, tile, self.variant.lanes):
                code.store(self._vector(code.gep(source, i64(v), self.kind)), code.gep(to, i64(v), F32))

        def rest(i: ir.Value) -> None:
            source = code.gep(place.right, builder.add(builder.mul(builder.add(start, i), self.n), at), self.kind)
            to = code.gep(panel, builder.mul(i, i64(tile)), F32)
            self._line(source, to, left)
            code.loop(left, i64(tile), 1, lambda j: code.store(ir.Constant(F32, 0.0), code.gep(to, j, F32)))

        with builder.if_else(builder.icmp_signed(">=", left, i64(tile))) as (then, otherwise):
            with then:
                code.loop(i64(0), depth, 1, whole)
            with otherwise:
                code.loop(i64(0), depth, 1, rest)

    def _pack_transposed(self, start: ir.Value, depth: ir.Value, panel: ir.Value, at: ir.Value, left: ir.Value) -> None:
        """Emits the packing of a panel of a transposed operand, in squares as wide as a vector."""
        code, builder, lanes, tile = self.code, self.builder, self.variant.lanes, self.variant.tile_columns
        last = builder.sub(left, i64(1))
        whole = builder.and_(depth, i64(-lanes))

        def columns(first: ir.Value) -> None:
            lines = [builder.add(at, code.min(builder.add(first, i64(i)), last)) for i in range(lanes)]
            rows = [
                code.gep(self.place.right, builder.add(builder.mul(line, self.k), start), self.kind) for line in lines
            ]

            def square(k: ir.Value) -> None:
                vectors = transposed(code, [self._vector(code.gep(row, k, self.kind)) for row in rows])
                for i, vector in enumerate(vectors):
                    place = builder.add(builder.mul(builder.add(k, i64(i)), i64(tile)), first)
                    code.store(vector, code.gep(panel, place, F32))

            def rest(k: ir.Value) -> None:
                for i, row in enumerate(rows):
                    place = builder.add(builder.mul(k, i64(tile)), builder.add(first, i64(i)))
                    code.store(self._number(code.gep(row, k, self.kind)), code.gep(panel, place, F32))

            code.loop(i64(0), whole, lanes, square)
            code.loop(whole, depth, 1, rest)

        code.loop(i64(0), i64(tile), lanes, columns)

    def _tile(self, depth: ir.Value, row: ir.Value, column: ir.Value, first: ir.Value) -> None:
        """Emits the addition of a part of K to a tile's sums."""
        code, builder, place, tile = self.code, self.builder, self.place, self.variant.tile_columns
        if self.sums is not None:
            to = code.gep(self.sums, builder.add(builder.mul(row, i64(BLOCK_COLUMNS)), column), F32)
            self._sum(depth, column, first, to, i64(BLOCK_COLUMNS))
            return
        corner = code.gep(
            place.result,
            builder.add(builder.mul(builder.add(place.row, row), self.n), builder.add(place.column, column)),
            F32,
        )
        rows = code.min(i64(TILE_ROWS), builder.sub(place.rows, row))
        columns = code.min(i64(tile), builder.sub(place.columns, column))
        fits = builder.icmp_signed("==", builder.mul(rows, columns), i64(TILE_ROWS * tile))
        to = builder.select(fits, corner, self.spare)
        stride = builder.select(fits, self.n, i64(tile))

        def moved(source: ir.Value, source_stride: ir.Value, to: ir.Value, to_stride: ir.Value) -> None:
            code.loop(
                i64(0),
                rows,
                1,
                lambda i: code.loop(
                    i64(0),
                    columns,
                    1,
                    lambda j: code.store(
                        code.load(code.gep(source, builder.add(builder.mul(i, source_stride), j), F32), F32),
                        code.gep(to, builder.add(builder.mul(i, to_stride), j), F32),
                    ),
                ),
            )

        with builder.if_then(builder.not_(builder.or_(fits, first))):
            moved(corner, self.n, self.spare, i64(tile))
        self._sum(depth, column, first, to, stride)
        with builder.if_then(builder.not_(fits)):
            moved(self.spare, i64(tile), corner, self.n)

    def _sum(
        self,
        depth: ir.Value,
        column: ir.Value,
        first: ir.Value,
        to: ir.Value,
        stride: ir.Value,
    ) -> None:
        code, builder, lanes, tile = self.code, self.builder, self.variant.lanes, self.variant.tile_columns
        sums = [[code.alloca(self.wide) for _ in range(self.variant.vectors)] for _ in range(TILE_ROWS)]
        places = [
            [code.gep(to, builder.add(builder.mul(i64(i), stride), i64(v * lanes)), F32) for v in range(len(each))]
            for i, each in enumerate(sums)
        ]
        pairs = [pair for each in zip(sums, places, strict=True) for pair in zip(*each, strict=True)]
        with builder.if_else(first) as (then, otherwise):
            with then:
                for variable, _ in pairs:
                    builder.store(f32_constant(0.0, lanes), variable)
            with otherwise:
                for variable, place in pairs:
                    builder.store(code.load(place, self.wide), variable)
        panel = code.gep(self.panels, builder.mul(column, i64(DEPTH)), F32)

        def step(k: ir.Value) -> None:
            line = code.gep(panel, builder.mul(k, i64(tile)), F32)
            rights = [code.load(code.gep(line, i64(v * lanes), F32), self.wide) for v in range(self.variant.vectors)]
            for each, left in zip(sums, self._lefts(k), strict=True):
                many = code.splat(left, lanes)
                for variable, right in zip(each, rights, strict=True):
                    builder.store(code.fma(many, right, builder.load(variable, typ=self.wide)), variable)

        code.loop(i64(0), depth, 1, step)
        for variable, place in pairs:
            code.store(builder.load(variable, typ=self.wide), place)

    def _lefts(self, k: ir.Value) -> list[ir.Value]:
        """Emits the loads of the left operand's numbers at one step of K, one a row of the tile."""
        code, builder = self.code, self.builder
        if self.variant.transpose_a:
            corner = code.gep(self.packed, builder.mul(k, i64(_LINE)), F32)
            places = [code.gep(corner, i64(i), F32) for i in range(TILE_ROWS)]
        else:
            corner = code.gep(self.packed, k, F32)
            places = [code.gep(corner, i64(i * (DEPTH + _APART)), F32) for i in range(TILE_ROWS)]
        return [code.load(place, F32) for place in places]
