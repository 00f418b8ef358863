"""The code of a matrix product in float32: one item is a block of the result, computed by one core.

A block's right operand is packed into panels as wide as the registers' part of the result, which its rows then pass one
after the other (Goto and van de Geijn, Anatomy of high-performance matrix multiplication, 2008). What is transposed or
bfloat16 is laid out or widened while it is packed. Sums are float32.

Legend: M rows, N columns, K what is contracted; a *tile* is what registers hold of the result.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator

from llvmlite import ir

from kanawa.arrays.native.calls import Operands
from kanawa.arrays.native.code import F32, I16, I32, I64, POINTER, Code, constant, floats, index

#: Rows of a tile: with four vectors of AVX-512 or NEON, or two of AVX2, its sums fill the registers.
TILE_ROWS = 6
#: Rows and columns of a block, at most, and how much of K is packed at a time: a panel stays in the first cache, the
#: rest in the second.
BLOCK_ROWS, BLOCK_COLUMNS, DEPTH = 240, 320, 112
#: The same of what AMX takes, and the rows and columns of its tiles.
AMX_ROWS, AMX_COLUMNS, AMX_DEPTH, AMX_SQUARE = 256, 256, 512, 32
#: How many blocks' memory is kept, as many threads as may compute at a time.
_KEPT = 16
#: Floats from one step of K to the next of a tile's rows that lay transposed.
_LINE = 8
#: Which of the call's buffers is which.
LEFT, RIGHT, BLOCKS, RESULT = 0, 1, 2, 3


@dataclasses.dataclass(frozen=True)
class Product:
    """What code is written for: how operands lie, what they and the result are, and the registers there are."""

    transpose_a: bool
    transpose_b: bool
    halves: bool
    half_result: bool
    lanes: int
    vectors: int
    amx: bool = False

    @property
    def tile_columns(self) -> int:
        """Columns of a tile."""
        return self.lanes * self.vectors

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns that a block has a multiple of."""
        return (AMX_SQUARE, AMX_SQUARE) if self.amx else (TILE_ROWS, self.tile_columns)

    @property
    def most(self) -> tuple[int, int]:
        """Rows and columns of a block, at most."""
        return (AMX_ROWS, AMX_COLUMNS) if self.amx else (BLOCK_ROWS, BLOCK_COLUMNS)

    @property
    def depth(self) -> int:
        """How much of K is packed at a time, at most."""
        return AMX_DEPTH if self.amx else DEPTH

    @property
    def depth_unit(self) -> int:
        """What a part of K that isn't the last has a multiple of."""
        return AMX_SQUARE if self.amx else 1


@dataclasses.dataclass(frozen=True)
class Cut:
    """A result cut into blocks: its sizes, a block's rows, columns and part of K; blocks side by side, and in all."""

    sizes: tuple[ir.Value, ir.Value, ir.Value]
    block: tuple[ir.Value, ir.Value]
    depth: ir.Value
    across: ir.Value
    total: ir.Value


def cut(product: Product, code: Code, buffers: Operands) -> Cut:
    """Writes how the result is cut; buffers are left [B, M, K], right [B, K, N], a block's rows, columns and
    part of K int32 [3], result."""
    builder = code.builder
    m, n = (buffers.size(RESULT, axis) for axis in (1, 2))
    k = buffers.size(LEFT, 1 if product.transpose_a else 2)
    given = (code.at(buffers.numbers[BLOCKS], index(i), I32) for i in range(3))
    *block, depth = (
        # Whatever is asked for, what is packed has to fit.
        code.most(code.least(builder.sext(code.get(place, I32), I64), index(most)), index(1))
        for place, most in zip(given, (*product.most, product.depth), strict=True)
    )
    down, across = (_blocks(code, size, each) for size, each in zip((m, n), block, strict=True))
    total = builder.mul(buffers.size(RESULT, 0), builder.mul(down, across))
    return Cut((m, n, k), (block[0], block[1]), depth, across, total)


def _blocks(code: Code, size: ir.Value, each: ir.Value) -> ir.Value:
    return code.builder.sdiv(code.builder.add(size, code.builder.sub(each, index(1))), each)


def write(product: Product, code: Code, buffers: Operands, item: ir.Value) -> None:
    """Writes the code of one block."""
    _Block(product, code, buffers, item).write()


class Place:
    """Where a block lies: the first of its rows and columns, how many it has, and pointers to its operands' numbers."""

    def __init__(self, product: Product, code: Code, buffers: Operands, item: ir.Value) -> None:
        builder, self.cut = code.builder, cut(product, code, buffers)
        (m, n, k), (rows, columns) = self.cut.sizes, self.cut.block
        each = builder.mul(_blocks(code, m, rows), self.cut.across)
        batch, within = builder.sdiv(item, each), builder.srem(item, each)
        self.row = builder.mul(builder.sdiv(within, self.cut.across), rows)
        self.column = builder.mul(builder.srem(within, self.cut.across), columns)
        self.rows = code.least(rows, builder.sub(m, self.row))
        self.columns = code.least(columns, builder.sub(n, self.column))
        taken = (I16 if product.halves else F32, I16 if product.half_result else F32)
        self.left, self.right, self.result = (
            code.at(buffers.numbers[buffer], builder.mul(batch, builder.mul(*sizes)), kind)
            for buffer, sizes, kind in ((LEFT, (m, k), taken[0]), (RIGHT, (k, n), taken[0]), (RESULT, (m, n), taken[1]))
        )


@contextlib.contextmanager
def scratch(code: Code, size: int) -> Iterator[ir.Value]:
    """Writes that so many bytes, on a cache line, are had and given back.

    They are kept for the next block: what the system's allocator gives instead lies in no cache.
    """
    builder, memory = code.builder, code.variable(I64)
    kind, none = ir.ArrayType(I64, _KEPT), index(0)
    kept = ir.GlobalVariable(builder.module, kind, "kept")
    kept.linkage, kept.initializer = "internal", ir.Constant(kind, None)
    kept.type = POINTER
    builder.store(none, memory)

    def has() -> ir.Value:
        return builder.icmp_signed("!=", builder.load(memory, typ=I64), none)

    def is_there(place: ir.Value) -> ir.Value:
        return builder.icmp_signed("!=", builder.load_atomic(place, "monotonic", 8, typ=I64), none)

    def take(i: ir.Value) -> None:
        place = code.at(kept, i, I64)
        with builder.if_then(builder.and_(builder.not_(has()), is_there(place))):
            builder.store(builder.atomic_rmw("xchg", place, none, "acq_rel"), memory)

    def put_back(i: ir.Value) -> None:
        place = code.at(kept, i, I64)
        with builder.if_then(builder.and_(has(), builder.not_(is_there(place)))):
            # Another thread may have put its own there meanwhile, which is then this one's to place.
            builder.store(builder.atomic_rmw("xchg", place, builder.load(memory, typ=I64), "acq_rel"), memory)

    code.loop(none, index(_KEPT), 1, take)
    with builder.if_then(builder.not_(has())):
        given = builder.call(code.library("malloc", POINTER, I64), [index(size + 64)])
        builder.store(builder.ptrtoint(given, I64), memory)
    aligned = builder.and_(builder.add(builder.load(memory, typ=I64), index(63)), index(-64))
    yield builder.inttoptr(aligned, POINTER)
    code.loop(none, index(_KEPT), 1, put_back)
    with builder.if_then(has()):
        given = builder.inttoptr(builder.load(memory, typ=I64), POINTER)
        builder.call(code.library("free", ir.VoidType(), POINTER), [given])


def write_sums(code: Code, place: Place, sums: ir.Value, n: ir.Value, product: Product) -> None:
    """Writes a block's sums, a row of as many as a block may have, into its place of the result, of `n` columns."""
    builder, lanes, kind = code.builder, product.lanes, I16 if product.half_result else F32
    whole = builder.and_(place.columns, index(-lanes))

    def row(i: ir.Value) -> None:
        source = code.at(sums, builder.mul(i, index(product.most[1])), F32)
        to = code.at(place.result, builder.add(builder.mul(builder.add(place.row, i), n), place.column), kind)

        def each(lanes: int, j: ir.Value) -> None:
            numbers = code.get(code.at(source, j, F32), floats(lanes))
            if product.half_result:
                builder.store(code.narrowed(numbers), code.at(to, j, I16), align=2)
            else:
                code.put(numbers, code.at(to, j, F32))

        code.loop(index(0), whole, lanes, functools.partial(each, lanes))
        code.loop(whole, place.columns, 1, functools.partial(each, 1))

    code.loop(index(0), place.rows, 1, row)


def turned(code: Code, rows: list[ir.Value]) -> list[ir.Value]:
    """Returns the columns of a square, given its rows as vectors: halves change places, then quarters, and so on."""
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
    def __init__(self, product: Product, code: Code, buffers: Operands, item: ir.Value) -> None:
        self.product, self.code, self.builder = product, code, code.builder
        self.place = Place(product, code, buffers, item)
        self.m, self.n, self.k = self.place.cut.sizes
        self.kind = I16 if product.halves else F32
        self.wide = floats(product.lanes)

    def write(self) -> None:
        code, builder = self.code, self.builder
        tile = self.product.tile_columns
        sizes = [BLOCK_COLUMNS * DEPTH]
        sizes += [BLOCK_ROWS // TILE_ROWS * _LINE * DEPTH if self.product.transpose_a else BLOCK_ROWS * DEPTH]
        # What is rounded needs all of its sum first.
        sizes += [BLOCK_ROWS * BLOCK_COLUMNS] if self.product.half_result else []
        with scratch(code, 4 * sum(sizes)) as memory:
            self.panels, *others = (code.at(memory, index(sum(sizes[:i])), F32) for i in range(len(sizes)))
            self.packed = others.pop(0)
            self.sums = others.pop(0) if self.product.half_result else None
            self.spare = None if self.sums is not None else code.memory(4 * TILE_ROWS * tile)

            def part(start: ir.Value) -> None:
                depth = code.least(self.place.cut.depth, builder.sub(self.k, start))
                self._pack_left(start, depth)
                code.loop(index(0), self.place.columns, tile, lambda column: self._pack_right(start, depth, column))
                first = builder.icmp_signed("==", start, index(0))
                code.loop(
                    index(0),
                    self.place.columns,
                    tile,
                    lambda column: code.loop(
                        index(0), self.place.rows, TILE_ROWS, lambda row: self._tile(start, depth, row, column, first)
                    ),
                )

            code.loop(index(0), self.k, self.place.cut.depth, part)
            if self.sums is not None:
                write_sums(code, self.place, self.sums, self.n, self.product)

    def _number(self, source: ir.Value) -> ir.Value:
        """Returns one number of an operand as a float."""
        if not self.product.halves:
            return self.code.get(source, F32)
        half = self.builder.load(source, typ=I16, align=2)
        return self.builder.bitcast(self.builder.shl(self.builder.zext(half, I32), ir.Constant(I32, 16)), F32)

    def _vector(self, source: ir.Value, width: int | None = None) -> ir.Value:
        width = width or self.product.lanes
        if not self.product.halves:
            return self.code.get(source, floats(width))
        return self.code.widened(self.code.get(source, ir.VectorType(I16, width)))

    def _line(self, source: ir.Value, to: ir.Value, count: ir.Value) -> None:
        """Writes that so many numbers in a row are copied, as floats."""
        code, builder, lanes = self.code, self.builder, self.product.lanes
        whole = builder.and_(count, index(-lanes))
        code.loop(
            index(0),
            whole,
            lanes,
            lambda i: code.put(self._vector(code.at(source, i, self.kind)), code.at(to, i, F32)),
        )
        code.loop(whole, count, 1, lambda i: code.put(self._number(code.at(source, i, self.kind)), code.at(to, i, F32)))

    def _pack_left(self, start: ir.Value, depth: ir.Value) -> None:
        """Writes the left operand as floats: [rows, DEPTH], or of one that is transposed tiles of [depth, _LINE]."""
        code, builder, place = self.code, self.builder, self.place
        if self.product.transpose_a:
            whole = builder.mul(
                builder.sdiv(builder.sub(place.rows, index(_LINE - TILE_ROWS)), index(TILE_ROWS)), index(TILE_ROWS)
            )

            def step(k: ir.Value) -> None:
                source = code.at(place.left, builder.mul(builder.add(start, k), self.m), self.kind)
                source = code.at(source, place.row, self.kind)

                def line(row: ir.Value) -> ir.Value:
                    panel = builder.mul(builder.sdiv(row, index(TILE_ROWS)), index(_LINE * DEPTH))
                    return code.at(self.packed, builder.add(panel, builder.mul(k, index(_LINE))), F32)

                def rest(row: ir.Value) -> None:
                    # Rows beyond the last repeat it: what they sum is dropped.
                    last = builder.sub(place.rows, index(1))
                    for i in range(TILE_ROWS):
                        number = self._number(code.at(source, code.least(builder.add(row, index(i)), last), self.kind))
                        code.put(number, code.at(line(row), index(i), F32))

                code.loop(
                    index(0),
                    whole,
                    TILE_ROWS,
                    lambda row: code.put(self._vector(code.at(source, row, self.kind), _LINE), line(row)),
                )
                code.loop(whole, place.rows, TILE_ROWS, rest)

            code.loop(index(0), depth, 1, step)
            return

        def row(i: ir.Value) -> None:
            source = code.at(place.left, builder.mul(builder.add(place.row, i), self.k), self.kind)
            to = code.at(self.packed, builder.mul(i, index(DEPTH)), F32)
            self._line(code.at(source, start, self.kind), to, depth)

        code.loop(index(0), place.rows, 1, row)

    def _pack_right(self, start: ir.Value, depth: ir.Value, column: ir.Value) -> None:
        """Writes one panel, [depth, tile columns]; columns that aren't any repeat the last, or are 0."""
        code, builder, place, tile = self.code, self.builder, self.place, self.product.tile_columns
        panel = code.at(self.panels, builder.mul(column, index(DEPTH)), F32)
        left = builder.sub(place.columns, column)
        at = builder.add(place.column, column)
        if self.product.transpose_b:
            self._turn(start, depth, panel, at, left)
            return

        def whole(i: ir.Value) -> None:
            source = code.at(place.right, builder.add(builder.mul(builder.add(start, i), self.n), at), self.kind)
            to = code.at(panel, builder.mul(i, index(tile)), F32)
            for v in range(0, tile, self.product.lanes):
                code.put(self._vector(code.at(source, index(v), self.kind)), code.at(to, index(v), F32))

        def rest(i: ir.Value) -> None:
            source = code.at(place.right, builder.add(builder.mul(builder.add(start, i), self.n), at), self.kind)
            to = code.at(panel, builder.mul(i, index(tile)), F32)
            self._line(source, to, left)
            code.loop(left, index(tile), 1, lambda j: code.put(ir.Constant(F32, 0.0), code.at(to, j, F32)))

        with builder.if_else(builder.icmp_signed(">=", left, index(tile))) as (then, otherwise):
            with then:
                code.loop(index(0), depth, 1, whole)
            with otherwise:
                code.loop(index(0), depth, 1, rest)

    def _turn(self, start: ir.Value, depth: ir.Value, panel: ir.Value, at: ir.Value, left: ir.Value) -> None:
        """Writes a panel of an operand that lies transposed, in squares as wide as a vector."""
        code, builder, lanes, tile = self.code, self.builder, self.product.lanes, self.product.tile_columns
        last = builder.sub(left, index(1))
        whole = builder.and_(depth, index(-lanes))

        def columns(first: ir.Value) -> None:
            lines = [builder.add(at, code.least(builder.add(first, index(i)), last)) for i in range(lanes)]
            rows = [
                code.at(self.place.right, builder.add(builder.mul(line, self.k), start), self.kind) for line in lines
            ]

            def square(k: ir.Value) -> None:
                vectors = turned(code, [self._vector(code.at(row, k, self.kind)) for row in rows])
                for i, vector in enumerate(vectors):
                    place = builder.add(builder.mul(builder.add(k, index(i)), index(tile)), first)
                    code.put(vector, code.at(panel, place, F32))

            def rest(k: ir.Value) -> None:
                for i, row in enumerate(rows):
                    place = builder.add(builder.mul(k, index(tile)), builder.add(first, index(i)))
                    code.put(self._number(code.at(row, k, self.kind)), code.at(panel, place, F32))

            code.loop(index(0), whole, lanes, square)
            code.loop(whole, depth, 1, rest)

        code.loop(index(0), index(tile), lanes, columns)

    def _tile(self, start: ir.Value, depth: ir.Value, row: ir.Value, column: ir.Value, first: ir.Value) -> None:
        """Writes that a tile's sums get what a part of K adds to them."""
        code, builder, place, tile = self.code, self.builder, self.place, self.product.tile_columns
        if self.sums is not None:
            to = code.at(self.sums, builder.add(builder.mul(row, index(BLOCK_COLUMNS)), column), F32)
            self._sum(start, depth, row, column, first, to, index(BLOCK_COLUMNS))
            return
        corner = code.at(
            place.result,
            builder.add(builder.mul(builder.add(place.row, row), self.n), builder.add(place.column, column)),
            F32,
        )
        rows = code.least(index(TILE_ROWS), builder.sub(place.rows, row))
        columns = code.least(index(tile), builder.sub(place.columns, column))
        fits = builder.icmp_signed("==", builder.mul(rows, columns), index(TILE_ROWS * tile))
        to = builder.select(fits, corner, self.spare)
        stride = builder.select(fits, self.n, index(tile))

        def moved(source: ir.Value, source_stride: ir.Value, to: ir.Value, to_stride: ir.Value) -> None:
            code.loop(
                index(0),
                rows,
                1,
                lambda i: code.loop(
                    index(0),
                    columns,
                    1,
                    lambda j: code.put(
                        code.get(code.at(source, builder.add(builder.mul(i, source_stride), j), F32), F32),
                        code.at(to, builder.add(builder.mul(i, to_stride), j), F32),
                    ),
                ),
            )

        with builder.if_then(builder.not_(builder.or_(fits, first))):
            moved(corner, self.n, self.spare, index(tile))
        self._sum(start, depth, row, column, first, to, stride)
        with builder.if_then(builder.not_(fits)):
            moved(self.spare, index(tile), corner, self.n)

    def _sum(
        self,
        start: ir.Value,
        depth: ir.Value,
        row: ir.Value,
        column: ir.Value,
        first: ir.Value,
        to: ir.Value,
        stride: ir.Value,
    ) -> None:
        code, builder, lanes, tile = self.code, self.builder, self.product.lanes, self.product.tile_columns
        sums = [[code.variable(self.wide) for _ in range(self.product.vectors)] for _ in range(TILE_ROWS)]
        places = [
            [code.at(to, builder.add(builder.mul(index(i), stride), index(v * lanes)), F32) for v in range(len(each))]
            for i, each in enumerate(sums)
        ]
        pairs = [pair for each in zip(sums, places, strict=True) for pair in zip(*each, strict=True)]
        with builder.if_else(first) as (then, otherwise):
            with then:
                for variable, _ in pairs:
                    builder.store(constant(0.0, lanes), variable)
            with otherwise:
                for variable, place in pairs:
                    builder.store(code.get(place, self.wide), variable)
        lefts = self._lefts(start, row)
        panel = code.at(self.panels, builder.mul(column, index(DEPTH)), F32)

        def step(k: ir.Value) -> None:
            line = code.at(panel, builder.mul(k, index(tile)), F32)
            rights = [code.get(code.at(line, index(v * lanes), F32), self.wide) for v in range(self.product.vectors)]
            for each, left in zip(sums, lefts(k), strict=True):
                many = code.many(left, lanes)
                for variable, right in zip(each, rights, strict=True):
                    builder.store(code.fused(many, right, builder.load(variable, typ=self.wide)), variable)

        code.loop(index(0), depth, 1, step)
        for variable, place in pairs:
            code.put(builder.load(variable, typ=self.wide), place)

    def _lefts(self, start: ir.Value, row: ir.Value) -> Callable[[ir.Value], list[ir.Value]]:
        """Returns what writes the left operand's numbers at one step of K, one a row of the tile."""
        code, builder, place = self.code, self.builder, self.place
        if self.product.transpose_a:
            corner = code.at(self.packed, builder.mul(builder.sdiv(row, index(TILE_ROWS)), index(_LINE * DEPTH)), F32)

            def turned(k: ir.Value) -> list[ir.Value]:
                line = code.at(corner, builder.mul(k, index(_LINE)), F32)
                return [code.get(code.at(line, index(i), F32), F32) for i in range(TILE_ROWS)]

            return turned
        last = builder.sub(builder.sub(place.rows, row), index(1))
        rows = [builder.add(row, code.least(index(i), last)) for i in range(TILE_ROWS)]
        pointers = [code.at(self.packed, builder.mul(each, index(DEPTH)), F32) for each in rows]
        return lambda k: [code.get(code.at(pointer, k, F32), F32) for pointer in pointers]
