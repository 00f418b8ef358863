"""The code of attention.cpu.native: a work item is one row's query heads of a few key heads, block by block of keys.

Operands: queries [B, K, G, D], keys [P, N, K, D], values [P, N, K, Dv], table [B, R], first and end of the keys that a
row sees [B]. Results: largest scores and sums of exponentials [B, K, G], sums of values [B, K, G, Dv].
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from kanawa.kernels.attention import scores as sc
from llvmlite import ir

from kanawa_backends_cpu.native.calls import Operands
from kanawa_backends_cpu.native.code import F32, I16, I32, Code, f32_constant, f32_vector, i64

#: Keys of a block: as many floats as the widest vectors hold.
_BLOCK = 16
#: Bytes that one prefetch brings.
_CACHE_LINE = 64
#: Emits the index of a block's key.
Place = Callable[[ir.Value], ir.Value]


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is compiled into a function; rows, pages and the table's width are read when it runs.

    Attributes:
        heads, group: key heads, and query heads of each.
        together: key heads of an item, a divisor of `heads`.
        width, v_width: of a key and of a value; `lanes` and `v_lanes` are the floats of a vector they are cut into.
        page: tokens of a page.
        bits: whether pages hold the bits of bfloat16 numbers, not floats.
        cap: of scores, or None.
    """

    heads: int
    together: int
    group: int
    width: int
    v_width: int
    lanes: int
    v_lanes: int
    page: int
    bits: bool
    cap: float | None


def count_items(shape: Shape, code: Code, operands: Operands) -> ir.Value:
    """Emits the number of work items: rows times parts of the key heads."""
    return code.builder.mul(operands.size(0, 0), i64(shape.heads // shape.together))


def emit_item(shape: Shape, code: Code, operands: Operands, item: ir.Value) -> None:
    """Emits the code of an item: its row counts slower than its key heads."""
    _Item(shape, code, operands, item).emit()


class _Item:
    def __init__(self, shape: Shape, code: Code, operands: Operands, item: ir.Value) -> None:
        self.shape, self.code, self.operands = shape, code, operands
        builder, lines = code.builder, shape.together * shape.group
        self.row = builder.sdiv(item, i64(shape.heads // shape.together))
        self.first_head = builder.mul(item, i64(shape.together))
        self.pages, self.entries = operands.size(1, 0), operands.size(3, 1)
        self.first, self.end = (self._of_row(operand) for operand in (4, 5))
        self.stored = I16 if shape.bits else F32
        self.lanes, self.v_lanes = shape.lanes, shape.v_lanes
        # Of all key heads, in the first cache.
        self.sums = [code.alloca_bytes(4 * lines * width) for width in (1, 1, shape.v_width)]
        # Of one, in registers.
        groups = range(shape.group)
        self.queries = [self._places(shape.width, self.lanes) for _ in groups]
        self.top, self.total = ([code.alloca(F32) for _ in groups] for _ in range(2))
        self.values = [self._places(shape.v_width, self.v_lanes) for _ in groups]
        self.scores = code.alloca_bytes(4 * _BLOCK * shape.group)

    def emit(self) -> None:
        """Emits the start, the loop over blocks, and the stores of results."""
        code, shape = self.code, self.shape

        def begin(head: ir.Value) -> None:
            """Emits empty sums."""
            for group in range(shape.group):
                code.store(ir.Constant(F32, sc.MASKED), self.top[group])
                code.store(ir.Constant(F32, 0.0), self.total[group])
                for place in self.values[group]:
                    code.store(f32_constant(0.0, self.v_lanes), place)
            self._move_sums(self.sums, head, out=True)

        def finish(head: ir.Value) -> None:
            self._move_sums(self.sums, head, out=False)
            self._move_sums(self.operands.data[6:9], code.builder.add(self.first_head, head), out=True)

        start = code.builder.mul(code.builder.sdiv(self.first, i64(_BLOCK)), i64(_BLOCK))
        self._each_head(begin)
        code.loop(start, self.end, _BLOCK, self._block)
        self._each_head(finish)

    def _each_head(self, body: Callable[[ir.Value], None]) -> None:
        """Emits a body for each key head of the item; a single one's sums stay in registers."""
        if self.shape.together == 1:
            body(i64(0))
        else:
            self.code.loop(i64(0), i64(self.shape.together), 1, body)

    def _move_sums(self, places: Sequence[ir.Value], head: ir.Value, *, out: bool) -> None:
        """Emits the copy of a key head's sums from registers to memory, or back."""
        code, builder = self.code, self.code.builder
        lines = builder.mul(head, i64(self.shape.group))
        for group in range(self.shape.group):
            line = builder.add(lines, i64(group))
            values = builder.mul(line, i64(self.shape.v_width))
            moves = [(F32, self.top[group], 0, line), (F32, self.total[group], 1, line)]
            for part, register in enumerate(self.values[group]):
                offset = builder.add(values, i64(part * self.v_lanes))
                moves.append((f32_vector(self.v_lanes), register, 2, offset))
            for kind, register, which, at in moves:
                place = code.gep(places[which], at, F32)
                source, to = (register, place) if out else (place, register)
                code.store(code.load(source, kind), to)

    def _block(self, base: ir.Value) -> None:
        """Emits the block that starts at key `base`; twice, since LLVM unrolls the loops of a full block."""
        code, builder = self.code, self.code.builder
        start = code.max(builder.sub(self.first, base), i64(0))
        stop = code.min(builder.sub(self.end, base), i64(_BLOCK))
        whole = builder.icmp_signed("==", builder.sub(stop, start), i64(_BLOCK))
        here, ahead = self._places_of_block(base), self._places_of_block(builder.add(base, i64(_BLOCK)))

        def attend(start: ir.Value, stop: ir.Value) -> Callable[[ir.Value], None]:
            def one_head(head: ir.Value) -> None:
                at = builder.add(self.first_head, head)
                self.head = builder.srem(at, i64(self.shape.heads))
                self._read_queries(at)
                self._move_sums(self.sums, head, out=False)
                self._attend(here, ahead, start, stop)
                self._move_sums(self.sums, head, out=True)

            return one_head

        with builder.if_else(whole) as (yes, no):
            with yes:
                self._each_head(attend(i64(0), i64(_BLOCK)))
            with no:
                self._each_head(attend(start, stop))

    def _read_queries(self, head: ir.Value) -> None:
        """Emits the loads of the queries of a key head, counted over all rows."""
        code, shape = self.code, self.shape
        queries = code.builder.mul(head, i64(shape.group * shape.width))
        for group, places in enumerate(self.queries):
            for part, place in enumerate(places):
                offset = code.builder.add(queries, i64(group * shape.width + part * self.lanes))
                code.store(code.load(code.gep(self.operands.data[0], offset, F32), f32_vector(self.lanes)), place)

    def _attend(self, here: Place, ahead: Place, start: ir.Value, stop: ir.Value) -> None:
        """Emits one step of a key head's online softmax: scores, rescaling, and the values' weighted sum.

        `here` and `ahead` emit the places of the keys of this block and of the next one, which arrives meanwhile.
        """
        code, shape = self.code, self.shape
        for group in range(shape.group):
            code.store(f32_constant(sc.MASKED, _BLOCK), self._score(i64(_BLOCK * group)))

        def score(key: ir.Value) -> None:
            self._prefetch(1, ahead(key), shape.width)
            keys = self._read(1, here(key), shape.width, self.lanes)
            for group, queries in enumerate(self.queries):
                kind = f32_vector(self.lanes)
                terms = [code.mul(code.load(q, kind), k) for q, k in zip(queries, keys, strict=True)]
                total = functools.reduce(code.add, terms)
                code.store(code.reduce_sum(total), self._score(code.builder.add(key, i64(_BLOCK * group))))

        def weigh(key: ir.Value) -> None:
            self._prefetch(2, ahead(key), shape.v_width)
            values = self._read(2, here(key), shape.v_width, self.v_lanes)
            for group, sums in enumerate(self.values):
                weight = code.load(self._score(code.builder.add(key, i64(_BLOCK * group))), F32)
                weights = code.splat(weight, self.v_lanes)
                for place, value in zip(sums, values, strict=True):
                    code.store(code.add(code.load(place, f32_vector(self.v_lanes)), code.mul(weights, value)), place)

        code.loop(start, stop, 1, score)
        for group in range(shape.group):
            self._rescale(group, start, stop)
        code.loop(start, stop, 1, weigh)

    def _rescale(self, group: int, start: ir.Value, stop: ir.Value) -> None:
        """Emits the change of a block's scores to weights, and the rescaling of the sums so far."""
        code, builder = self.code, self.code.builder
        place = self._score(i64(_BLOCK * group))
        scores = code.load(place, f32_vector(_BLOCK))
        if self.shape.cap is not None:
            scores = self._capped(scores, self.shape.cap)
        # By position: a visible score can have any value.
        masked = self._outside(start, stop)
        scores = builder.select(masked, f32_constant(sc.MASKED, _BLOCK), scores)
        before = code.load(self.top[group], F32)
        top = code.maxnum(before, code.reduce_max(scores))
        if self.shape.bits:
            twos = code.ceil(builder.fmul(top, ir.Constant(F32, 1 / math.log(2))))
            top = code.maxnum(builder.fmul(twos, ir.Constant(F32, math.log(2))), top)
        weights = code.exp(builder.fsub(scores, code.splat(top, _BLOCK)))
        weights = builder.select(masked, f32_constant(0.0, _BLOCK), weights)
        if self.shape.bits:
            # As training rounds them (see `tiles.top_for`).
            weights = code.bf16_to_f32(code.f32_to_bf16(weights))
        decays = code.exp(code.splat(builder.fsub(before, top), self.v_lanes))
        decay = builder.extract_element(decays, ir.Constant(I32, 0))
        total = code.add(code.mul(code.load(self.total[group], F32), decay), code.reduce_sum(weights))
        code.store(top, self.top[group])
        code.store(total, self.total[group])
        code.store(weights, place)
        for values in self.values[group]:
            code.store(code.mul(code.load(values, f32_vector(self.v_lanes)), decays), values)

    def _outside(self, start: ir.Value, stop: ir.Value) -> ir.Value:
        """Returns which keys of a block lie outside `start` to `stop`."""
        builder, kind = self.code.builder, ir.VectorType(I32, _BLOCK)
        places = ir.Constant(kind, list(range(_BLOCK)))
        first, end = (
            builder.shuffle_vector(
                builder.insert_element(ir.Constant(kind, ir.Undefined), builder.trunc(bound, I32), ir.Constant(I32, 0)),
                ir.Constant(kind, ir.Undefined),
                ir.Constant(kind, [0] * _BLOCK),
            )
            for bound in (start, stop)
        )
        return builder.or_(builder.icmp_signed("<", places, first), builder.icmp_signed(">=", places, end))

    def _capped(self, scores: ir.Value, cap: float) -> ir.Value:
        """Returns cap * tanh(scores / cap), as 1 - 2 / (1 + e^2x), x limited so that e^2x is finite."""
        builder, width = self.code.builder, _BLOCK
        limit = f32_constant(40.0, width)
        twice = self.code.mul(scores, f32_constant(2.0 / cap, width))
        # NaN compares false, and propagates.
        twice = builder.select(builder.fcmp_ordered(">", twice, limit), limit, twice)
        power = builder.fadd(self.code.exp(twice), f32_constant(1.0, width))
        tanh = builder.fsub(f32_constant(1.0, width), builder.fdiv(f32_constant(2.0, width), power))
        return builder.fmul(f32_constant(cap, width), tanh)

    def _places_of_block(self, base: ir.Value) -> Place:
        """Returns a function that emits the index of a key of the block: its token in the pool, and there this head."""
        builder, size = self.code.builder, i64(self.shape.page)
        # Once if pages hold whole blocks, else for each key.
        page = self._page(base) if self.shape.page % _BLOCK == 0 else None

        def place(key: ir.Value) -> ir.Value:
            at = builder.add(base, key)
            token = builder.mul(self._page(at) if page is None else page, size)
            token = builder.add(token, builder.srem(at, size))
            return builder.add(builder.mul(token, i64(self.shape.heads)), self.head)

        return place

    def _page(self, at: ir.Value) -> ir.Value:
        """Returns the page of a row's key; past the end of the table, its last entry."""
        code, builder = self.code, self.code.builder
        entry = code.min(builder.sdiv(at, i64(self.shape.page)), builder.sub(self.entries, i64(1)))
        offset = builder.add(builder.mul(self.row, self.entries), entry)
        page = builder.sext(code.load(code.gep(self.operands.data[3], offset, I32), I32), ir.IntType(64))
        return code.min(code.max(page, i64(0)), builder.sub(self.pages, i64(1)))

    def _read(self, operand: int, place: ir.Value, width: int, lanes: int) -> list[ir.Value]:
        """Emits the loads of a key or a value as floats."""
        code, start = self.code, self.code.builder.mul(place, i64(width))
        kind = ir.VectorType(self.stored, lanes)
        parts = []
        for offset in range(0, width, lanes):
            at = code.gep(self.operands.data[operand], code.builder.add(start, i64(offset)), self.stored)
            part = code.load(at, kind)
            parts.append(code.bf16_to_f32(part) if self.shape.bits else part)
        return parts

    def _prefetch(self, operand: int, place: ir.Value, width: int) -> None:
        """Emits the prefetch of a key or a value into the second cache, which has more lines on their way."""
        start = self.code.builder.mul(place, i64(width))
        for offset in range(0, width, _CACHE_LINE // (2 if self.shape.bits else 4)):
            at = self.code.builder.add(start, i64(offset))
            self.code.prefetch(self.code.gep(self.operands.data[operand], at, self.stored), level=2)

    def _score(self, at: ir.Value) -> ir.Value:
        return self.code.gep(self.scores, at, F32)

    def _places(self, width: int, lanes: int) -> list[ir.Value]:
        return [self.code.alloca(f32_vector(lanes)) for _ in range(width // lanes)]

    def _of_row(self, operand: int) -> ir.Value:
        number = self.code.load(self.code.gep(self.operands.data[operand], self.row, I32), I32)
        return self.code.builder.sext(number, ir.IntType(64))
