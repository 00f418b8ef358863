"""The code of attention.cpu.invariant: a work item is a few queries of one row and key head, block by block of keys.

Every query is computed by the same operations in the same order, whatever else is in its item: scores sum over the
width one number after the other, the softmax is online over blocks that begin at multiples of 16, and a block that a
query doesn't see changes nothing of it. No sum is left to LLVM to reorder.

Operands: queries [B, T, H, D] and keys [P, N, K, D], values [P, N, K, Dv], all as the bits of bfloat16; table [B, R];
first and end of the keys that a query sees [B, T]; segments of queries [B, T] and of keys [B, S]. Results: out
[B, T, H, Dv], largest scores and sums of exponentials [B, T, H].
"""

import dataclasses
import math

from kanawa.kernels.attention import scores as sc
from llvmlite import ir

from kanawa_backends_cpu.kernels.matmul.native_code import transposed
from kanawa_backends_cpu.native.calls import Operands
from kanawa_backends_cpu.native.code import F32, I16, I32, I64, Code, f32_constant, f32_vector, i64

#: Keys of a block, which are also the floats of a vector.
BLOCK = 16
_Q, _K, _V, _TABLE, _FIRST, _END, _Q_SEGMENTS, _KV_SEGMENTS, _OUT, _TOP, _TOTAL = range(11)
_VECTOR = f32_vector(BLOCK)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is compiled into a function; rows, queries, pages and the table's width are read when it runs.

    Attributes:
        heads, group: key heads, and query heads of each.
        width, v_width: of a key and of a value, multiples of 16.
        page: tokens of a page; for dense keys, those of a row.
        queries: of an item.
        scale, cap: of scores; the cap may be None.
        segments: whether a query sees keys of its own segment alone.
    """

    heads: int
    group: int
    width: int
    v_width: int
    page: int
    queries: int
    scale: float
    cap: float | None
    segments: bool

    @property
    def lines(self) -> int:
        """Query heads of an item."""
        return self.queries * self.group

    @property
    def together(self) -> int:
        """Query heads whose sums are in registers at a time."""
        return min(4, self.lines)


def count_items(shape: Shape, code: Code, operands: Operands) -> ir.Value:
    """Emits the number of work items: rows times key heads times groups of queries."""
    rows, length = (operands.size(_Q, axis) for axis in (0, 1))
    return code.builder.mul(code.builder.mul(rows, i64(shape.heads)), _groups(shape, code, length))


def _groups(shape: Shape, code: Code, length: ir.Value) -> ir.Value:
    return code.builder.sdiv(code.builder.add(length, i64(shape.queries - 1)), i64(shape.queries))


def emit_item(shape: Shape, code: Code, operands: Operands, item: ir.Value) -> None:
    """Emits the code of an item: its row, then its key head, then its queries count slowest."""
    code.fast_math = ()
    _Item(shape, code, operands, item).emit()


class _Item:
    def __init__(self, shape: Shape, code: Code, operands: Operands, item: ir.Value) -> None:
        self.shape, self.code, self.operands = shape, code, operands
        builder = self.builder = code.builder
        self.length = operands.size(_Q, 1)
        groups = _groups(shape, code, self.length)
        per_row = builder.mul(groups, i64(shape.heads))
        self.row, rest = builder.sdiv(item, per_row), builder.srem(item, per_row)
        self.head = builder.sdiv(rest, groups)
        self.query = builder.mul(builder.srem(rest, groups), i64(shape.queries))
        count = code.min(i64(shape.queries), builder.sub(self.length, self.query))
        self.lines = builder.mul(count, i64(shape.group))
        # As many as are computed together, so that none is left over; what lies beyond the last sees no key.
        self.padded = -(-shape.lines // shape.together) * shape.together
        lines, numbers = self.padded, [shape.width, shape.v_width, BLOCK, 1, 1, 1]
        self.queries, self.values, self.scores, self.top, self.total, self.decay = (
            code.alloca_bytes(4 * lines * each) for each in numbers
        )
        self.first, self.end, self.segment = (code.alloca_bytes(4 * lines) for _ in range(3))
        self.keys = code.alloca_bytes(4 * BLOCK * shape.width)
        self.block_values = code.alloca_bytes(4 * BLOCK * shape.v_width)
        self.segments = code.alloca_bytes(4 * BLOCK)

    def emit(self) -> None:
        """Emits the start, the loop over blocks, and the stores of results."""
        code, builder = self.code, self.builder
        lowest, highest = code.alloca(I64), code.alloca(I64)
        builder.store(i64(1 << 40), lowest)
        builder.store(i64(0), highest)
        code.loop(i64(0), i64(self.padded), 1, lambda line: self._start(line, lowest, highest))
        limit = builder.load(highest, typ=I64)
        start = builder.mul(builder.sdiv(builder.load(lowest, typ=I64), i64(BLOCK)), i64(BLOCK))
        self.last = builder.sub(code.max(limit, i64(1)), i64(1))
        code.loop(start, limit, BLOCK, self._block)
        code.loop(i64(0), self.lines, 1, self._finish)

    # --- the beginning ----------------------------------------------------------------------------------------

    def _start(self, line: ir.Value, lowest: ir.Value, highest: ir.Value) -> None:
        """Emits the start of a line: its query as scaled floats, the keys that it sees, and empty sums."""
        code, builder, shape = self.code, self.builder, self.shape
        exists = builder.icmp_signed("<", line, self.lines)
        # One that doesn't exist repeats the first, and sees nothing.
        own = builder.select(exists, line, i64(0))
        query = builder.add(self.query, builder.sdiv(own, i64(shape.group)))
        at = builder.add(builder.mul(self.row, self.length), query)
        first, end = (self._integer(operand, at) for operand in (_FIRST, _END))
        end = builder.select(exists, end, i64(0))
        builder.store(builder.trunc(first, I32), code.gep(self.first, line, I32), align=4)
        builder.store(builder.trunc(end, I32), code.gep(self.end, line, I32), align=4)
        if shape.segments:
            segment = code.load(code.gep(self.operands.data[_Q_SEGMENTS], at, I32), I32)
            builder.store(segment, code.gep(self.segment, line, I32), align=4)
        sees = builder.icmp_signed("<", first, end)
        builder.store(
            builder.select(sees, code.min(first, builder.load(lowest, typ=I64)), builder.load(lowest, typ=I64)), lowest
        )
        builder.store(code.max(end, builder.load(highest, typ=I64)), highest)
        source, to = builder.mul(self._line_at(own), i64(shape.width)), builder.mul(line, i64(shape.width))
        scale = f32_constant(shape.scale, BLOCK)
        for offset in range(0, shape.width, BLOCK):
            place = code.gep(self.operands.data[_Q], builder.add(source, i64(offset)), I16)
            scaled = builder.fmul(code.bf16_to_f32(code.load(place, ir.VectorType(I16, BLOCK))), scale)
            code.store(scaled, code.gep(self.queries, builder.add(to, i64(offset)), F32))
        values = builder.mul(line, i64(shape.v_width))
        for offset in range(0, shape.v_width, BLOCK):
            code.store(f32_constant(0.0, BLOCK), code.gep(self.values, builder.add(values, i64(offset)), F32))
        code.store(ir.Constant(F32, sc.MASKED), code.gep(self.top, line, F32))
        code.store(ir.Constant(F32, 0.0), code.gep(self.total, line, F32))

    def _line_at(self, line: ir.Value) -> ir.Value:
        """Returns a line's place among the query heads of all rows."""
        builder, group = self.builder, i64(self.shape.group)
        query = builder.add(self.query, builder.sdiv(line, group))
        at = builder.add(builder.mul(self.row, self.length), query)
        head = builder.add(builder.mul(self.head, group), builder.srem(line, group))
        return builder.add(builder.mul(at, i64(self.shape.heads * self.shape.group)), head)

    # --- a block of keys ----------------------------------------------------------------------------------------

    def _block(self, base: ir.Value) -> None:
        """Emits one step of the online softmax of all lines."""
        code, shape = self.code, self.shape
        self._read(base)
        together = shape.together
        code.loop(i64(0), i64(self.padded), together, self._score)
        code.loop(i64(0), i64(self.padded), 1, lambda line: self._weigh(base, line))
        code.loop(i64(0), i64(self.padded), together, self._sum)

    def _read(self, base: ir.Value) -> None:
        """Emits the block's keys as floats, the width slowest, and its values; those past the last key are zeros."""
        code, builder, shape = self.code, self.builder, self.shape
        places = []
        for key in range(BLOCK):
            at = code.min(builder.add(base, i64(key)), self.last)
            entry = builder.sdiv(at, i64(shape.page))
            table = builder.add(builder.mul(self.row, self.operands.size(_TABLE, 1)), entry)
            page = code.min(code.max(self._integer(_TABLE, table), i64(0)), builder.sub(self._pages(), i64(1)))
            token = builder.add(builder.mul(page, i64(shape.page)), builder.srem(at, i64(shape.page)))
            places.append(builder.add(builder.mul(token, i64(shape.heads)), self.head))
            if shape.segments:
                length = self.operands.size(_KV_SEGMENTS, 1)
                own = builder.add(builder.mul(self.row, length), at)
                number = code.load(code.gep(self.operands.data[_KV_SEGMENTS], own, I32), I32)
                builder.store(number, code.gep(self.segments, i64(key), I32), align=4)

        def columns(offset: ir.Value) -> None:
            rows = [self._floats(_K, place, shape.width, offset) for place in places]
            for i, column in enumerate(transposed(code, rows)):
                at = builder.mul(builder.add(offset, i64(i)), i64(BLOCK))
                code.store(column, code.gep(self.keys, at, F32))

        code.loop(i64(0), i64(shape.width), BLOCK, columns)
        zero = f32_constant(0.0, BLOCK)
        for key, place in enumerate(places):
            exists = builder.icmp_signed("<=", builder.add(base, i64(key)), self.last)
            for offset in range(0, shape.v_width, BLOCK):
                value = self._floats(_V, place, shape.v_width, i64(offset))
                to = code.gep(self.block_values, i64(key * shape.v_width + offset), F32)
                code.store(builder.select(exists, value, zero), to)

    def _floats(self, operand: int, place: ir.Value, width: int, offset: ir.Value) -> ir.Value:
        code, builder = self.code, self.builder
        at = code.gep(self.operands.data[operand], builder.add(builder.mul(place, i64(width)), offset), I16)
        return code.bf16_to_f32(code.load(at, ir.VectorType(I16, BLOCK)))

    def _pages(self) -> ir.Value:
        return self.operands.size(_K, 0)

    def _score(self, first: ir.Value) -> None:
        """Emits the scores of a few lines."""
        code, builder, shape = self.code, self.builder, self.shape
        lines = [builder.add(first, i64(i)) for i in range(shape.together)]
        sums = [code.alloca(_VECTOR) for _ in lines]
        for place in sums:
            code.store(f32_constant(0.0, BLOCK), place)

        def step(d: ir.Value) -> None:
            keys = code.load(code.gep(self.keys, builder.mul(d, i64(BLOCK)), F32), _VECTOR)
            for line, place in zip(lines, sums, strict=True):
                at = builder.add(builder.mul(line, i64(shape.width)), d)
                query = code.splat(code.load(code.gep(self.queries, at, F32), F32), BLOCK)
                code.store(code.fma(query, keys, code.load(place, _VECTOR)), place)

        code.loop(i64(0), i64(shape.width), 1, step)
        for line, place in zip(lines, sums, strict=True):
            code.store(code.load(place, _VECTOR), self._scores_of(line))

    def _weigh(self, base: ir.Value, line: ir.Value) -> None:
        """Emits the change of a line's scores to weights, and that of its largest score and its sum of weights."""
        code, builder, shape = self.code, self.builder, self.shape
        scores = code.load(self._scores_of(line), _VECTOR)
        if shape.cap is not None:
            scores = self._capped(scores, shape.cap)
        first, end = (builder.sub(self._small(place, line), base) for place in (self.first, self.end))
        hidden = self._outside(first, end)
        if shape.segments:
            own = self._splat_integer(code.load(code.gep(self.segment, line, I32), I32))
            theirs = builder.load(self.segments, typ=ir.VectorType(I32, BLOCK), align=4)
            hidden = builder.or_(hidden, builder.icmp_signed("!=", own, theirs))
        # By position: a visible score can have any value.
        scores = builder.select(hidden, f32_constant(sc.MASKED, BLOCK), scores)
        place = code.gep(self.top, line, F32)
        before, largest = code.load(place, F32), code.reduce_max(scores)
        # A multiple of ln 2, as training by other kernels has it (see `tiles.top_for`).
        twos = code.ceil(builder.fmul(largest, ir.Constant(F32, 1 / math.log(2))))
        rounded = code.maxnum(builder.fmul(twos, ir.Constant(F32, math.log(2))), largest)
        # Unchanged by a block without a larger score, also where the rounding isn't that of `before`.
        top = builder.select(builder.fcmp_ordered("<=", largest, before), before, rounded)
        weights = code.exp(builder.fsub(scores, code.splat(top, BLOCK)))
        weights = builder.select(hidden, f32_constant(0.0, BLOCK), weights)
        weights = code.bf16_to_f32(code.f32_to_bf16(weights))
        decay = builder.extract_element(code.exp(code.splat(builder.fsub(before, top), BLOCK)), ir.Constant(I32, 0))
        total = code.gep(self.total, line, F32)
        code.store(code.fma(code.load(total, F32), decay, self._sum_of(weights)), total)
        code.store(top, place)
        code.store(decay, code.gep(self.decay, line, F32))
        code.store(weights, self._scores_of(line))

    def _sum(self, first: ir.Value) -> None:
        """Emits the addition of the block's values to those of a few lines, key after key."""
        code, builder, shape = self.code, self.builder, self.shape
        lines = [builder.add(first, i64(i)) for i in range(shape.together)]
        decays = [code.splat(code.load(code.gep(self.decay, line, F32), F32), BLOCK) for line in lines]
        # As many vectors of sums as registers hold beside a key's.
        wide = BLOCK * next(n for n in (4, 3, 2, 1) if shape.v_width % (n * BLOCK) == 0)

        def part(offset: ir.Value) -> None:
            parts = [builder.add(offset, i64(i)) for i in range(0, wide, BLOCK)]
            places = [
                [code.gep(self.values, builder.add(builder.mul(line, i64(shape.v_width)), at), F32) for at in parts]
                for line in lines
            ]
            sums = [[code.alloca(_VECTOR) for _ in parts] for _ in lines]
            for decay, sources, targets in zip(decays, places, sums, strict=True):
                for source, target in zip(sources, targets, strict=True):
                    code.store(builder.fmul(code.load(source, _VECTOR), decay), target)

            def step(key: ir.Value) -> None:
                start = builder.mul(key, i64(shape.v_width))
                values = [code.load(code.gep(self.block_values, builder.add(start, at), F32), _VECTOR) for at in parts]
                for line, targets in zip(lines, sums, strict=True):
                    at = builder.add(builder.mul(line, i64(BLOCK)), key)
                    weight = code.splat(code.load(code.gep(self.scores, at, F32), F32), BLOCK)
                    for value, target in zip(values, targets, strict=True):
                        code.store(code.fma(weight, value, code.load(target, _VECTOR)), target)

            code.loop(i64(0), i64(BLOCK), 1, step)
            for sources, targets in zip(places, sums, strict=True):
                for source, target in zip(sources, targets, strict=True):
                    code.store(code.load(target, _VECTOR), source)

        code.loop(i64(0), i64(shape.v_width), wide, part)

    # --- the end ------------------------------------------------------------------------------------------------

    def _finish(self, line: ir.Value) -> None:
        """Emits the stores of a line's results; one that sees nothing gets zeros."""
        code, builder, shape = self.code, self.builder, self.shape
        at = self._line_at(line)
        top, total = (code.load(code.gep(place, line, F32), F32) for place in (self.top, self.total))
        code.store(top, code.gep(self.operands.data[_TOP], at, F32))
        code.store(total, code.gep(self.operands.data[_TOTAL], at, F32))
        # NaN compares unordered, and propagates.
        nothing = builder.fcmp_ordered("==", total, ir.Constant(F32, 0.0))
        divisor = code.splat(builder.select(nothing, ir.Constant(F32, 1.0), total), BLOCK)
        for offset in range(0, shape.v_width, BLOCK):
            source = builder.add(builder.mul(line, i64(shape.v_width)), i64(offset))
            values = builder.fdiv(code.load(code.gep(self.values, source, F32), _VECTOR), divisor)
            to = code.gep(self.operands.data[_OUT], builder.add(builder.mul(at, i64(shape.v_width)), i64(offset)), I16)
            builder.store(code.f32_to_bf16(values), to, align=2)

    # --- small parts --------------------------------------------------------------------------------------------

    def _scores_of(self, line: ir.Value) -> ir.Value:
        return self.code.gep(self.scores, self.builder.mul(line, i64(BLOCK)), F32)

    def _integer(self, operand: int, at: ir.Value) -> ir.Value:
        return self._small(self.operands.data[operand], at)

    def _small(self, place: ir.Value, at: ir.Value) -> ir.Value:
        """Returns a 32-bit integer as an index."""
        return self.builder.sext(self.code.load(self.code.gep(place, at, I32), I32), I64)

    def _splat_integer(self, value: ir.Value) -> ir.Value:
        builder, kind = self.builder, ir.VectorType(I32, BLOCK)
        undefined = ir.Constant(kind, ir.Undefined)
        one = builder.insert_element(undefined, value, ir.Constant(I32, 0))
        return builder.shuffle_vector(one, undefined, ir.Constant(kind, [0] * BLOCK))

    def _outside(self, first: ir.Value, end: ir.Value) -> ir.Value:
        """Returns which keys of a block lie outside `first` to `end`, counted from the block's begin."""
        builder = self.builder
        places = ir.Constant(ir.VectorType(I32, BLOCK), list(range(BLOCK)))
        low, high = (self._splat_integer(builder.trunc(bound, I32)) for bound in (first, end))
        return builder.or_(builder.icmp_signed("<", places, low), builder.icmp_signed(">=", places, high))

    def _sum_of(self, vector: ir.Value) -> ir.Value:
        """Returns the sum of a vector's floats, always halves first."""
        builder, width = self.builder, BLOCK
        while width > 1:
            width //= 2
            low, high = (
                builder.shuffle_vector(
                    vector, vector, ir.Constant(ir.VectorType(I32, width), list(range(at, at + width)))
                )
                for at in (0, width)
            )
            vector = builder.fadd(low, high)
        return builder.extract_element(vector, ir.Constant(I32, 0))

    def _capped(self, scores: ir.Value, cap: float) -> ir.Value:
        """Returns cap * tanh(scores / cap), as 1 - 2 / (1 + e^2x), x limited so that e^2x is finite."""
        builder, limit = self.builder, f32_constant(40.0, BLOCK)
        twice = builder.fmul(scores, f32_constant(2.0 / cap, BLOCK))
        # NaN compares false, and propagates.
        twice = builder.select(builder.fcmp_ordered(">", twice, limit), limit, twice)
        power = builder.fadd(self.code.exp(twice), f32_constant(1.0, BLOCK))
        tanh = builder.fsub(f32_constant(1.0, BLOCK), builder.fdiv(f32_constant(2.0, BLOCK), power))
        return builder.fmul(f32_constant(cap, BLOCK), tanh)
