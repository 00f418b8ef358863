"""The code of attention.cpu.native: one row's query heads of one key head, from block to block of keys.

Operands: queries [B, K, G, D], keys [P, N, K, D], values [P, N, K, Dv], table [B, R], first and end of the keys that a
row sees [B]. Results: largest scores and sums of exponentials [B, K, G], sums of values [B, K, G, Dv].
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from llvmlite import ir

from kanawa.arrays.native.calls import Operands
from kanawa.arrays.native.code import F32, I16, I32, Code, constant, floats, index
from kanawa.kernels.attention import scores as sc

if TYPE_CHECKING:
    from kanawa.kernels.attention.paged_native import Shape

#: Keys of a block: as many floats as the widest vectors hold.
_BLOCK = 16
#: Bytes that one prefetch brings.
_CACHE_LINE = 64


def write(shape: "Shape", code: Code, operands: Operands, item: ir.Value) -> None:
    """Writes the code of an item: row `item // K`, key head `item % K`."""
    _Item(shape, code, operands, item).write()


class _Item:
    def __init__(self, shape: "Shape", code: Code, operands: Operands, item: ir.Value) -> None:
        self.shape, self.code, self.operands, self.item = shape, code, operands, item
        builder = code.builder
        self.row, self.head = (make(item, index(shape.heads)) for make in (builder.sdiv, builder.srem))
        self.pages, self.entries = operands.size(1, 0), operands.size(3, 1)
        self.first, self.end = (self._of_row(operand) for operand in (4, 5))
        self.kept = I16 if shape.bits else F32
        groups = range(shape.group)
        self.lanes, self.v_lanes = shape.lanes
        self.queries = [self._places(shape.width, self.lanes) for _ in groups]
        self.top, self.total = ([code.variable(F32) for _ in groups] for _ in range(2))
        self.values = [self._places(shape.v_width, self.v_lanes) for _ in groups]
        self.scores = code.memory(4 * _BLOCK * shape.group)

    def write(self) -> None:
        """Writes all of it: the start, the loop over blocks, and what is told."""
        code, shape = self.code, self.shape
        queries = code.builder.mul(self.item, index(shape.group * shape.width))
        for group in range(shape.group):
            code.put(ir.Constant(F32, sc.MASKED), self.top[group])
            code.put(ir.Constant(F32, 0.0), self.total[group])
            for part, place in enumerate(self.queries[group]):
                offset = code.builder.add(queries, index(group * shape.width + part * self.lanes))
                code.put(code.get(code.at(self.operands.numbers[0], offset, F32), floats(self.lanes)), place)
            for place in self.values[group]:
                code.put(constant(0.0, self.v_lanes), place)
        start = code.builder.mul(code.builder.sdiv(self.first, index(_BLOCK)), index(_BLOCK))
        code.loop(start, self.end, _BLOCK, self._block)
        for group in range(shape.group):
            at = code.builder.add(code.builder.mul(self.item, index(shape.group)), index(group))
            for operand, place in ((6, self.top[group]), (7, self.total[group])):
                code.put(code.get(place, F32), code.at(self.operands.numbers[operand], at, F32))
            values = code.builder.mul(at, index(shape.v_width))
            for part, place in enumerate(self.values[group]):
                offset = code.builder.add(values, index(part * self.v_lanes))
                told = code.get(place, floats(self.v_lanes))
                code.put(told, code.at(self.operands.numbers[8], offset, F32))

    def _block(self, base: ir.Value) -> None:
        """Writes what a block does that starts at key `base`; twice, for LLVM unrolls the loops of a whole one."""
        code, builder = self.code, self.code.builder
        start = code.most(builder.sub(self.first, base), index(0))
        stop = code.least(builder.sub(self.end, base), index(_BLOCK))
        whole = builder.icmp_signed("==", builder.sub(stop, start), index(_BLOCK))
        with builder.if_else(whole) as (yes, no):
            with yes:
                self._take_in(base, index(0), index(_BLOCK))
            with no:
                self._take_in(base, start, stop)

    def _take_in(self, base: ir.Value, start: ir.Value, stop: ir.Value) -> None:
        """Writes one step of the online softmax: scores, what they change, and the values' sum."""
        code, shape = self.code, self.shape
        for group in range(shape.group):
            code.put(constant(sc.MASKED, _BLOCK), self._score(index(_BLOCK * group)))
        here, ahead = self._places_of_block(base), self._places_of_block(code.builder.add(base, index(_BLOCK)))

        def score(key: ir.Value) -> None:
            # This block's values and the next one's keys come while this one's scores are computed.
            self._prefetch(2, here(key), shape.v_width)
            self._prefetch(1, ahead(key), shape.width)
            keys = self._read(1, here(key), shape.width, self.lanes)
            for group, queries in enumerate(self.queries):
                products = [code.times(code.get(q, floats(self.lanes)), k) for q, k in zip(queries, keys, strict=True)]
                total = products[0]
                for product in products[1:]:
                    total = code.add(total, product)
                code.put(code.total(total), self._score(code.builder.add(key, index(_BLOCK * group))))

        def weigh(key: ir.Value) -> None:
            values = self._read(2, here(key), shape.v_width, self.v_lanes)
            for group, sums in enumerate(self.values):
                weight = code.get(self._score(code.builder.add(key, index(_BLOCK * group))), F32)
                weights = code.many(weight, self.v_lanes)
                for place, value in zip(sums, values, strict=True):
                    code.put(code.add(code.get(place, floats(self.v_lanes)), code.times(weights, value)), place)

        code.loop(start, stop, 1, score)
        for group in range(shape.group):
            self._rescale(group, start, stop)
        code.loop(start, stop, 1, weigh)

    def _rescale(self, group: int, start: ir.Value, stop: ir.Value) -> None:
        """Writes what a block's scores change before its values are added: they become weights."""
        code, builder = self.code, self.code.builder
        place = self._score(index(_BLOCK * group))
        scores = code.get(place, floats(_BLOCK))
        if self.shape.cap is not None:
            scores = self._capped(scores, self.shape.cap)
        # By where a key is, for every score may be one that is seen.
        hidden = self._outside(start, stop)
        scores = builder.select(hidden, constant(sc.MASKED, _BLOCK), scores)
        before = code.get(self.top[group], F32)
        top = code.higher(before, code.highest(scores))
        weights = code.exp(builder.fsub(scores, code.many(top, _BLOCK)))
        weights = builder.select(hidden, constant(0.0, _BLOCK), weights)
        kept = code.exp(code.many(builder.fsub(before, top), self.v_lanes))
        share = builder.extract_element(kept, ir.Constant(I32, 0))
        total = code.add(code.times(code.get(self.total[group], F32), share), code.total(weights))
        code.put(top, self.top[group])
        code.put(total, self.total[group])
        code.put(weights, place)
        for values in self.values[group]:
            code.put(code.times(code.get(values, floats(self.v_lanes)), kept), values)

    def _outside(self, start: ir.Value, stop: ir.Value) -> ir.Value:
        """Returns which keys of a block are none of those from `start` to before `stop`."""
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
        """Returns cap * tanh(scores / cap), as 1 - 2 / (1 + e^2x) of what is small enough for its exponential."""
        builder, width = self.code.builder, _BLOCK
        limit = constant(40.0, width)
        twice = self.code.times(scores, constant(2.0 / cap, width))
        # NaN is no comparison's, and stays.
        twice = builder.select(builder.fcmp_ordered(">", twice, limit), limit, twice)
        power = builder.fadd(self.code.exp(twice), constant(1.0, width))
        tanh = builder.fsub(constant(1.0, width), builder.fdiv(constant(2.0, width), power))
        return builder.fmul(constant(cap, width), tanh)

    def _places_of_block(self, base: ir.Value) -> Callable[[ir.Value], ir.Value]:
        """Returns what writes where the block's key lies: which token of a pool, and of it this head."""
        builder, size = self.code.builder, index(self.shape.page)
        # Of a page that holds whole blocks, once; otherwise of each key.
        page = self._page(base) if self.shape.page % _BLOCK == 0 else None

        def place(key: ir.Value) -> ir.Value:
            at = builder.add(base, key)
            token = builder.mul(self._page(at) if page is None else page, size)
            token = builder.add(token, builder.srem(at, size))
            return builder.add(builder.mul(token, index(self.shape.heads)), self.head)

        return place

    def _page(self, at: ir.Value) -> ir.Value:
        """Returns the page of a row's key; past the table's end, where no key is, the last one."""
        code, builder = self.code, self.code.builder
        entry = code.least(builder.sdiv(at, index(self.shape.page)), builder.sub(self.entries, index(1)))
        offset = builder.add(builder.mul(self.row, self.entries), entry)
        page = builder.sext(code.get(code.at(self.operands.numbers[3], offset, I32), I32), ir.IntType(64))
        return code.least(code.most(page, index(0)), builder.sub(self.pages, index(1)))

    def _read(self, operand: int, place: ir.Value, width: int, lanes: int) -> list[ir.Value]:
        """Returns a key's or a value's numbers as floats."""
        code, start = self.code, self.code.builder.mul(place, index(width))
        kind = ir.VectorType(self.kept, lanes)
        parts = []
        for offset in range(0, width, lanes):
            at = code.at(self.operands.numbers[operand], code.builder.add(start, index(offset)), self.kept)
            part = code.get(at, kind)
            parts.append(code.widened(part) if self.shape.bits else part)
        return parts

    def _prefetch(self, operand: int, place: ir.Value, width: int) -> None:
        """Writes that a key's or a value's numbers will be read."""
        start = self.code.builder.mul(place, index(width))
        for offset in range(0, width, _CACHE_LINE // (2 if self.shape.bits else 4)):
            at = self.code.builder.add(start, index(offset))
            self.code.prefetch(self.code.at(self.operands.numbers[operand], at, self.kept))

    def _score(self, at: ir.Value) -> ir.Value:
        return self.code.at(self.scores, at, F32)

    def _places(self, width: int, lanes: int) -> list[ir.Value]:
        return [self.code.variable(floats(lanes)) for _ in range(width // lanes)]

    def _of_row(self, operand: int) -> ir.Value:
        number = self.code.get(self.code.at(self.operands.numbers[operand], self.row, I32), I32)
        return self.code.builder.sext(number, ir.IntType(64))
