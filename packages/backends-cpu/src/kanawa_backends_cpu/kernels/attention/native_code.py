"""The code of attention.cpu.native: a work item is one row's query heads of one key head, block by block of keys.

Operands: queries [B, K, G, D], keys [P, N, K, D], values [P, N, K, Dv], table [B, R], first and end of the keys that a
row sees [B]. Results: largest scores and sums of exponentials [B, K, G], sums of values [B, K, G, Dv].
"""

import dataclasses
import functools
import math
from collections.abc import Callable

from kanawa.kernels.attention import scores as sc
from llvmlite import ir

from kanawa_backends_cpu.native.calls import Operands
from kanawa_backends_cpu.native.code import F32, I16, I32, Code, f32_constant, f32_vector, i64

#: Keys of a block: as many floats as the widest vectors hold.
_BLOCK = 16
#: Bytes that one prefetch brings.
_CACHE_LINE = 64


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is compiled into a function; rows, pages and the table's width are read when it runs.

    Attributes:
        heads, group: key heads, and query heads of each.
        width, v_width: of a key and of a value; `lanes` and `v_lanes` are the floats of a vector they are cut into.
        page: tokens of a page.
        bits: whether pages hold the bits of bfloat16 numbers, not floats.
        cap: of scores, or None.
    """

    heads: int
    group: int
    width: int
    v_width: int
    lanes: int
    v_lanes: int
    page: int
    bits: bool
    cap: float | None


def count_items(code: Code, operands: Operands) -> ir.Value:
    """Emits the number of work items: rows times key heads."""
    return code.builder.mul(operands.size(0, 0), operands.size(0, 1))


def emit_item(shape: Shape, code: Code, operands: Operands, item: ir.Value) -> None:
    """Emits the code of an item: row `item // K`, key head `item % K`."""
    _Item(shape, code, operands, item).emit()


class _Item:
    def __init__(self, shape: Shape, code: Code, operands: Operands, item: ir.Value) -> None:
        self.shape, self.code, self.operands, self.item = shape, code, operands, item
        builder = code.builder
        self.row, self.head = (make(item, i64(shape.heads)) for make in (builder.sdiv, builder.srem))
        self.pages, self.entries = operands.size(1, 0), operands.size(3, 1)
        self.first, self.end = (self._of_row(operand) for operand in (4, 5))
        self.stored = I16 if shape.bits else F32
        groups = range(shape.group)
        self.lanes, self.v_lanes = shape.lanes, shape.v_lanes
        self.queries = [self._places(shape.width, self.lanes) for _ in groups]
        self.top, self.total = ([code.alloca(F32) for _ in groups] for _ in range(2))
        self.values = [self._places(shape.v_width, self.v_lanes) for _ in groups]
        self.scores = code.alloca_bytes(4 * _BLOCK * shape.group)

    def emit(self) -> None:
        """Emits the start, the loop over blocks, and the stores of results."""
        code, shape = self.code, self.shape
        queries = code.builder.mul(self.item, i64(shape.group * shape.width))
        for group in range(shape.group):
            code.store(ir.Constant(F32, sc.MASKED), self.top[group])
            code.store(ir.Constant(F32, 0.0), self.total[group])
            for part, place in enumerate(self.queries[group]):
                offset = code.builder.add(queries, i64(group * shape.width + part * self.lanes))
                code.store(code.load(code.gep(self.operands.data[0], offset, F32), f32_vector(self.lanes)), place)
            for place in self.values[group]:
                code.store(f32_constant(0.0, self.v_lanes), place)
        start = code.builder.mul(code.builder.sdiv(self.first, i64(_BLOCK)), i64(_BLOCK))
        code.loop(start, self.end, _BLOCK, self._block)
        for group in range(shape.group):
            at = code.builder.add(code.builder.mul(self.item, i64(shape.group)), i64(group))
            for operand, place in ((6, self.top[group]), (7, self.total[group])):
                code.store(code.load(place, F32), code.gep(self.operands.data[operand], at, F32))
            values = code.builder.mul(at, i64(shape.v_width))
            for part, place in enumerate(self.values[group]):
                offset = code.builder.add(values, i64(part * self.v_lanes))
                value = code.load(place, f32_vector(self.v_lanes))
                code.store(value, code.gep(self.operands.data[8], offset, F32))

    def _block(self, base: ir.Value) -> None:
        """Emits the block that starts at key `base`; twice, since LLVM unrolls the loops of a full block."""
        code, builder = self.code, self.code.builder
        start = code.max(builder.sub(self.first, base), i64(0))
        stop = code.min(builder.sub(self.end, base), i64(_BLOCK))
        whole = builder.icmp_signed("==", builder.sub(stop, start), i64(_BLOCK))
        with builder.if_else(whole) as (yes, no):
            with yes:
                self._attend(base, i64(0), i64(_BLOCK))
            with no:
                self._attend(base, start, stop)

    def _attend(self, base: ir.Value, start: ir.Value, stop: ir.Value) -> None:
        """Emits one step of the online softmax: scores, rescaling, and the values' weighted sum."""
        code, shape = self.code, self.shape
        for group in range(shape.group):
            code.store(f32_constant(sc.MASKED, _BLOCK), self._score(i64(_BLOCK * group)))
        here, ahead = self._places_of_block(base), self._places_of_block(code.builder.add(base, i64(_BLOCK)))

        def score(key: ir.Value) -> None:
            # This block's values and the next one's keys arrive while this one's scores are computed.
            self._prefetch(2, here(key), shape.v_width)
            self._prefetch(1, ahead(key), shape.width)
            keys = self._read(1, here(key), shape.width, self.lanes)
            for group, queries in enumerate(self.queries):
                kind = f32_vector(self.lanes)
                terms = [code.mul(code.load(q, kind), k) for q, k in zip(queries, keys, strict=True)]
                total = functools.reduce(code.add, terms)
                code.store(code.reduce_sum(total), self._score(code.builder.add(key, i64(_BLOCK * group))))

        def weigh(key: ir.Value) -> None:
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

    def _places_of_block(self, base: ir.Value) -> Callable[[ir.Value], ir.Value]:
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
        """Emits the prefetch of a key or a value."""
        start = self.code.builder.mul(place, i64(width))
        for offset in range(0, width, _CACHE_LINE // (2 if self.shape.bits else 4)):
            at = self.code.builder.add(start, i64(offset))
            self.code.prefetch(self.code.gep(self.operands.data[operand], at, self.stored))

    def _score(self, at: ir.Value) -> ir.Value:
        return self.code.gep(self.scores, at, F32)

    def _places(self, width: int, lanes: int) -> list[ir.Value]:
        return [self.code.alloca(f32_vector(lanes)) for _ in range(width // lanes)]

    def _of_row(self, operand: int) -> ir.Value:
        number = self.code.load(self.code.gep(self.operands.data[operand], self.row, I32), I32)
        return self.code.builder.sext(number, ir.IntType(64))
