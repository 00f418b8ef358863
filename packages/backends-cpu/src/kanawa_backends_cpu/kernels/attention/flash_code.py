"""The code of attention.cpu.flash: tiles of queries by keys; those in which no query sees a key are skipped.

Forward, a work item is some queries of one row and key head, with the online softmax of FlashAttention-2; backward, a
row and key head, so that no two threads add to one gradient. Keys and values are copied, and keys also transposed, so
that each matmul reads memory in order. Sums are float32.

Legend: B rows, T queries, S keys, K key heads, G query heads a key head, H = K * G, D and Dv the widths of keys and
values; a *line* is a query of one head.

Operands: q [B, T, H, D], k [B, S, K, D], v [B, S, K, Dv]; first and end of the keys that a query sees [B, T]; segments
of queries [B, T] and of keys [B, S].
"""

import dataclasses
from collections.abc import Callable, Sequence

from kanawa.kernels.attention import scores as sc
from llvmlite import ir

from kanawa_backends_cpu.kernels.matmul.native_code import scratch, transposed
from kanawa_backends_cpu.native.calls import Operands
from kanawa_backends_cpu.native.code import F32, I32, I64, Code, f32_constant, f32_vector, i64

#: Keys of a tile, and the most lines: a tile's scores and operands stay in the second-level cache.
KEYS, LINES = 64, 64
#: Lines are computed in groups of so many.
_GROUP = 8
_Q, _K, _V, _FIRST, _END, _Q_SEGMENTS, _KV_SEGMENTS, _OUT, _TOP, _TOTAL = range(10)
_ZERO, _ONE = ir.Constant(F32, 0.0), ir.Constant(F32, 1.0)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is compiled into a function; rows and lengths are read when it runs.

    Attributes:
        heads, group: key heads, and query heads of each.
        width, v_width: of a key and of a value, multiples of `lanes`.
        scale: of scores.
        segments: whether a query sees keys of its own segment alone.
        lanes, vectors: floats of a vector, and vectors of a matmul's row in registers.
    """

    heads: int
    group: int
    width: int
    v_width: int
    scale: float
    segments: bool
    lanes: int
    vectors: int

    @property
    def queries(self) -> int:
        """Queries of a tile."""
        return max(1, LINES // self.group)

    @property
    def lines(self) -> int:
        """Lines of a tile, with those that fill up the last group."""
        return -(-self.queries * self.group // _GROUP) * _GROUP


@dataclasses.dataclass(frozen=True)
class Matrix:
    """Floats at a pointer: element (i, j) lies at i * rows + j * columns."""

    data: ir.Value
    rows: int
    columns: int = 1

    @property
    def transposed(self) -> "Matrix":
        """The same floats, rows for columns."""
        return Matrix(self.data, self.columns, self.rows)


class Tiles:
    """What forward and backward share: lines and keys of a tile, who sees whom, and matmuls."""

    def __init__(self, shape: Shape, code: Code, operands: Operands, row: ir.Value, head: ir.Value) -> None:
        self.shape, self.code, self.builder, self.operands = shape, code, code.builder, operands
        self.row, self.head = row, head
        self.length, self.keys = operands.size(_Q, 1), operands.size(_K, 1)
        self.wide = f32_vector(shape.lanes)
        self.first, self.end, self.segment = (code.alloca_bytes(4 * shape.lines) for _ in range(3))
        self.key_segments = code.alloca_bytes(4 * KEYS)
        #: The first key that any line sees, and the end; the smallest and the largest segment of lines and of keys.
        self.span, self.of_lines, self.of_keys = ((code.alloca(I64), code.alloca(I64)) for _ in range(3))

    def start_lines(self, query: ir.Value) -> None:
        """Begins a tile of lines: which keys each sees. Lines beyond the last see none."""
        code, builder, shape = self.code, self.builder, self.shape
        self.query = query
        queries = code.min(i64(shape.queries), builder.sub(self.length, query))
        self.lines = builder.mul(queries, i64(shape.group))
        self._reset(self.span, self.of_lines)

        def line(i: ir.Value) -> None:
            own = code.min(builder.sdiv(i, i64(shape.group)), builder.sub(queries, i64(1)))
            at = builder.add(builder.mul(self.row, self.length), builder.add(query, own))
            first, end = (self._integer(self.operands.data[operand], at) for operand in (_FIRST, _END))
            sees = builder.and_(builder.icmp_signed("<", i, self.lines), builder.icmp_signed("<", first, end))
            end = builder.select(sees, end, i64(0))
            self._store(first, self.first, i)
            self._store(end, self.end, i)
            with builder.if_then(sees):
                self._widen(self.span, first, end)
            if shape.segments:
                segment = self._integer(self.operands.data[_Q_SEGMENTS], at)
                self._store(segment, self.segment, i)
                self._widen(self.of_lines, segment, segment)

        code.loop(i64(0), i64(shape.lines), 1, line)

    def start_keys(self, base: ir.Value) -> None:
        """Begins a tile of keys: their segments; those beyond the last repeat it."""
        self.base = base
        if not self.shape.segments:
            return
        code, builder = self.code, self.builder
        self._reset(self.of_keys)

        def key(i: ir.Value) -> None:
            at = builder.add(builder.mul(self.row, self.keys), self._key(i))
            segment = self._integer(self.operands.data[_KV_SEGMENTS], at)
            self._store(segment, self.key_segments, i)
            self._widen(self.of_keys, segment, segment)

        code.loop(i64(0), i64(KEYS), 1, key)

    def meet(self) -> ir.Value:
        """Returns whether any line of the tile may see any key of it."""
        builder = self.builder
        low, high = (builder.load(place, typ=I64) for place in self.span)
        after = builder.icmp_signed("<", self.base, high)
        met = builder.and_(after, builder.icmp_signed("<", low, builder.add(self.base, i64(KEYS))))
        if self.shape.segments:
            (low, high), (begin, stop) = (
                [builder.load(place, typ=I64) for place in places] for places in (self.of_lines, self.of_keys)
            )
            same = builder.and_(builder.icmp_signed("<=", low, stop), builder.icmp_signed("<=", begin, high))
            met = builder.and_(met, same)
        return met

    def visible(self, line: ir.Value) -> Callable[[int], ir.Value]:
        """Returns a function of a key of the tile that emits which of it and the next ones a line sees."""
        code, builder, lanes = self.code, self.builder, self.shape.lanes
        kind = ir.VectorType(I32, lanes)
        base = builder.trunc(self.base, I32)
        first, end = (
            self._splat(builder.sub(code.load(code.gep(place, line, I32), I32), base))
            for place in (self.first, self.end)
        )
        segment = self._splat(code.load(code.gep(self.segment, line, I32), I32)) if self.shape.segments else None

        def of(key: int) -> ir.Value:
            places = ir.Constant(kind, list(range(key, key + lanes)))
            seen = builder.and_(builder.icmp_signed(">=", places, first), builder.icmp_signed("<", places, end))
            if segment is None:
                return seen
            theirs = builder.load(code.gep(self.key_segments, i64(key), I32), typ=kind, align=4)
            return builder.and_(seen, builder.icmp_signed("==", theirs, segment))

        return of

    def line_at(self, line: ir.Value) -> ir.Value:
        """Returns a line's place among [B, T, H]; lines beyond the last repeat it."""
        builder, group = self.builder, i64(self.shape.group)
        line = self.code.min(line, builder.sub(self.lines, i64(1)))
        at = builder.add(builder.mul(self.row, self.length), builder.add(self.query, builder.sdiv(line, group)))
        head = builder.add(builder.mul(self.head, group), builder.srem(line, group))
        return builder.add(builder.mul(at, i64(self.shape.heads * self.shape.group)), head)

    def key_at(self, key: ir.Value) -> ir.Value:
        """Returns the place of a key of the tile among [B, S, K]; keys beyond the last repeat it."""
        builder = self.builder
        at = builder.add(builder.mul(self.row, self.keys), self._key(key))
        return builder.add(builder.mul(at, i64(self.shape.heads)), self.head)

    def copy_lines(self, operand: int, width: int, to: ir.Value, scale: float = 1.0) -> None:
        """Emits the copy of an operand's lines, times `scale`."""
        factor = f32_constant(scale, self.shape.lanes)

        def copied(vector: ir.Value) -> ir.Value:
            return vector if scale == 1.0 else self.code.mul(vector, factor)

        self._copy(self.operands.data[operand], self.line_at, self.shape.lines, width, to, copied)

    def copy_keys(self, operand: int, width: int, to: ir.Value) -> None:
        """Emits the copy of the tile's keys or values."""
        self._copy(self.operands.data[operand], self.key_at, KEYS, width, to, lambda vector: vector)

    def _copy(
        self,
        data: ir.Value,
        place: Callable[[ir.Value], ir.Value],
        count: int,
        width: int,
        to: ir.Value,
        change: Callable[[ir.Value], ir.Value],
    ) -> None:
        code, builder = self.code, self.builder

        def line(i: ir.Value) -> None:
            source, target = builder.mul(place(i), i64(width)), builder.mul(i, i64(width))
            for offset in range(0, width, self.shape.lanes):
                numbers = code.load(code.gep(data, builder.add(source, i64(offset)), F32), self.wide)
                code.store(change(numbers), code.gep(to, builder.add(target, i64(offset)), F32))

        code.loop(i64(0), i64(count), 1, line)

    def transpose_keys(self, operand: int, width: int, to: ir.Value) -> None:
        """Emits the copy of the tile's keys or values as [width, KEYS]."""
        code, builder, lanes = self.code, self.builder, self.shape.lanes

        def square(begin: ir.Value) -> None:
            keys = [builder.mul(self.key_at(builder.add(begin, i64(i))), i64(width)) for i in range(lanes)]

            def columns(offset: ir.Value) -> None:
                rows = [
                    code.load(code.gep(self.operands.data[operand], builder.add(key, offset), F32), self.wide)
                    for key in keys
                ]
                for i, column in enumerate(transposed(code, rows)):
                    at = builder.add(builder.mul(builder.add(offset, i64(i)), i64(KEYS)), begin)
                    code.store(column, code.gep(to, at, F32))

            code.loop(i64(0), i64(width), lanes, columns)

        code.loop(i64(0), i64(KEYS), lanes, square)

    def matmul(self, a: Matrix, b: Matrix, c: Matrix, sizes: tuple[int, int, int], *, add: bool) -> None:
        """Emits c = a @ b, or c += a @ b, of sizes (rows, contracted, columns); b and c lie in rows."""
        code, builder, shape, (rows, depth, columns) = self.code, self.builder, self.shape, sizes
        whole = columns // shape.lanes
        begin = 0
        while begin < whole:
            count = min(shape.vectors, whole - begin)
            # As many rows as leave registers for one row of b.
            step = _GROUP if 2 * count <= shape.vectors else _GROUP // 2
            part = [shape.lanes * (begin + i) for i in range(count)]

            def some(row: ir.Value, part: list[int] = part, step: int = step) -> None:
                sums = [[code.alloca(self.wide) for _ in part] for _ in range(step)]
                places = [
                    code.gep(c.data, builder.add(builder.mul(builder.add(row, i64(i)), i64(c.rows)), i64(column)), F32)
                    for i in range(step)
                    for column in part
                ]
                flat = [variable for each in sums for variable in each]
                for variable, place in zip(flat, places, strict=True):
                    start = code.load(place, self.wide) if add else f32_constant(0.0, shape.lanes)
                    builder.store(start, variable)

                def contract(k: ir.Value) -> None:
                    line = code.gep(b.data, builder.mul(k, i64(b.rows)), F32)
                    rights = [code.load(code.gep(line, i64(column), F32), self.wide) for column in part]
                    corner = builder.add(builder.mul(row, i64(a.rows)), builder.mul(k, i64(a.columns)))
                    left = code.gep(a.data, corner, F32)
                    for i, each in enumerate(sums):
                        many = code.splat(code.load(code.gep(left, i64(i * a.rows), F32), F32), shape.lanes)
                        for variable, right in zip(each, rights, strict=True):
                            builder.store(code.fma(many, right, builder.load(variable, typ=self.wide)), variable)

                code.loop(i64(0), i64(depth), 1, contract)
                for variable, place in zip(flat, places, strict=True):
                    code.store(builder.load(variable, typ=self.wide), place)

            code.loop(i64(0), i64(rows), step, some)
            begin += count

    # --- small parts ------------------------------------------------------------------------------------------

    def _key(self, key: ir.Value) -> ir.Value:
        return self.code.min(self.builder.add(self.base, key), self.builder.sub(self.keys, i64(1)))

    def _integer(self, data: ir.Value, at: ir.Value) -> ir.Value:
        return self.builder.sext(self.code.load(self.code.gep(data, at, I32), I32), I64)

    def _store(self, number: ir.Value, place: ir.Value, at: ir.Value) -> None:
        self.builder.store(self.builder.trunc(number, I32), self.code.gep(place, at, I32), align=4)

    def _splat(self, value: ir.Value) -> ir.Value:
        kind = ir.VectorType(I32, self.shape.lanes)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(one, one, ir.Constant(kind, [0] * self.shape.lanes))

    def _reset(self, *ranges: tuple[ir.Value, ir.Value]) -> None:
        for low, high in ranges:
            self.builder.store(i64(1 << 40), low)
            self.builder.store(i64(-(1 << 40)), high)

    def _widen(self, places: tuple[ir.Value, ir.Value], low: ir.Value, high: ir.Value) -> None:
        for place, number, choose in zip(places, (low, high), (self.code.min, self.code.max), strict=True):
            self.builder.store(choose(number, self.builder.load(place, typ=I64)), place)


def cut(code: Code, memory: ir.Value, sizes: Sequence[int]) -> list[ir.Value]:
    """Returns pointers to so many floats each, one after the other."""
    return [code.gep(memory, i64(sum(sizes[:i])), F32) for i in range(len(sizes))]


def count_items(shape: Shape, code: Code, operands: Operands) -> ir.Value:
    """Emits the number of forward's items: rows times key heads times tiles of queries."""
    rows, length = (operands.size(_Q, axis) for axis in (0, 1))
    return code.builder.mul(code.builder.mul(rows, i64(shape.heads)), _tiles(shape, code, length))


def _tiles(shape: Shape, code: Code, length: ir.Value) -> ir.Value:
    return code.builder.sdiv(code.builder.add(length, i64(shape.queries - 1)), i64(shape.queries))


def emit_item(shape: Shape, code: Code, operands: Operands, item: ir.Value) -> None:
    """Emits the code of a forward item. Results: out [B, T, H, Dv], largest scores and sums of weights [B, T, H]."""
    builder = code.builder
    tiles = _tiles(shape, code, operands.size(_Q, 1))
    per_row = builder.mul(tiles, i64(shape.heads))
    row, rest = builder.sdiv(item, per_row), builder.srem(item, per_row)
    query = builder.mul(builder.srem(rest, tiles), i64(shape.queries))
    _Forward(shape, code, operands, row, builder.sdiv(rest, tiles)).emit(query)


class _Forward(Tiles):
    def emit(self, query: ir.Value) -> None:
        """Emits the online softmax of some lines over all tiles of keys, and the stores of results."""
        code, builder, shape = self.code, self.builder, self.shape
        lines, width, v_width = shape.lines, shape.width, shape.v_width
        sizes = [lines * width, lines * v_width, lines * KEYS, width * KEYS, KEYS * v_width, lines, lines]
        with scratch(code, 4 * sum(sizes)) as memory:
            q, out, scores, k, v, self.top, self.total = cut(code, memory, sizes)
            self.out, self.scores = out, scores
            self.start_lines(query)
            self.copy_lines(_Q, width, q, shape.scale)
            code.loop(i64(0), i64(lines), 1, self._clear)

            def tile(base: ir.Value) -> None:
                self.start_keys(base)
                with builder.if_then(self.meet()):
                    self.transpose_keys(_K, width, k)
                    self.copy_keys(_V, v_width, v)
                    weights = Matrix(scores, KEYS)
                    self.matmul(Matrix(q, width), Matrix(k, KEYS), weights, (lines, width, KEYS), add=False)
                    code.loop(i64(0), i64(lines), 1, self._weigh)
                    self.matmul(weights, Matrix(v, v_width), Matrix(out, v_width), (lines, KEYS, v_width), add=True)

            first, end = (builder.load(place, typ=I64) for place in self.span)
            start = builder.mul(builder.sdiv(first, i64(KEYS)), i64(KEYS))
            code.loop(start, code.min(end, self.keys), KEYS, tile)
            code.loop(i64(0), self.lines, 1, self._finish)

    def _clear(self, line: ir.Value) -> None:
        code, builder, shape = self.code, self.builder, self.shape
        for offset in range(0, shape.v_width, shape.lanes):
            at = builder.add(builder.mul(line, i64(shape.v_width)), i64(offset))
            code.store(f32_constant(0.0, shape.lanes), code.gep(self.out, at, F32))
        code.store(ir.Constant(F32, sc.MASKED), code.gep(self.top, line, F32))
        code.store(_ZERO, code.gep(self.total, line, F32))

    def _weigh(self, line: ir.Value) -> None:
        """Emits a line's step of the online softmax: scores become weights."""
        code, builder, lanes = self.code, self.builder, self.shape.lanes
        zero, hidden = f32_constant(0.0, lanes), f32_constant(sc.MASKED, lanes)
        visible, row = self.visible(line), code.gep(self.scores, builder.mul(line, i64(KEYS)), F32)
        places = [code.gep(row, i64(key), F32) for key in range(0, KEYS, lanes)]
        seen = [visible(key) for key in range(0, KEYS, lanes)]
        scores = [
            builder.select(here, code.load(place, self.wide), hidden) for here, place in zip(seen, places, strict=True)
        ]
        largest = scores[0]
        for vector in scores[1:]:
            largest = builder.select(builder.fcmp_ordered(">", vector, largest), vector, largest)
        top_place, total_place = (code.gep(place, line, F32) for place in (self.top, self.total))
        before = code.load(top_place, F32)
        top = code.maxnum(before, code.reduce_max(largest))
        many = code.splat(top, lanes)
        weights = [
            builder.select(here, code.exp(builder.fsub(vector, many)), zero)
            for here, vector in zip(seen, scores, strict=True)
        ]
        total = zero
        for place, vector in zip(places, weights, strict=True):
            code.store(vector, place)
            total = code.add(total, vector)
        decay = code.exp(code.splat(builder.fsub(before, top), lanes))
        old = code.mul(code.load(total_place, F32), builder.extract_element(decay, ir.Constant(I32, 0)))
        code.store(code.add(old, code.reduce_sum(total)), total_place)
        code.store(top, top_place)
        values = builder.mul(line, i64(self.shape.v_width))
        for offset in range(0, self.shape.v_width, lanes):
            place = code.gep(self.out, builder.add(values, i64(offset)), F32)
            code.store(code.mul(code.load(place, self.wide), decay), place)

    def _finish(self, line: ir.Value) -> None:
        """Emits the stores of a line's results; one that sees nothing gets zeros."""
        code, builder, shape = self.code, self.builder, self.shape
        at = self.line_at(line)
        top, total = (code.load(code.gep(place, line, F32), F32) for place in (self.top, self.total))
        code.store(top, code.gep(self.operands.data[_TOP], at, F32))
        code.store(total, code.gep(self.operands.data[_TOTAL], at, F32))
        nothing = builder.fcmp_ordered("==", total, _ZERO)
        divisor = code.splat(builder.select(nothing, _ONE, total), shape.lanes)
        for offset in range(0, shape.v_width, shape.lanes):
            source = builder.add(builder.mul(line, i64(shape.v_width)), i64(offset))
            values = builder.fdiv(code.load(code.gep(self.out, source, F32), self.wide), divisor)
            to = builder.add(builder.mul(at, i64(shape.v_width)), i64(offset))
            code.store(values, code.gep(self.operands.data[_OUT], to, F32))
