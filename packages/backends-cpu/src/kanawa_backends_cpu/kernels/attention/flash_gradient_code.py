"""The code of the gradients of attention.cpu.flash; the legend and the first operands are in `flash_code`.

A work item is a row and key head: for each tile of keys it goes through the tiles of lines, computes scores again from
the log-sum-exp, and adds to the gradients of both (FlashAttention-2, algorithm 2).

Further operands: gradients of the output [B, T, H, Dv], log-sum-exp and `row_delta` [B, H, T].
Results: gradients of q, k and v.
"""

from collections.abc import Callable

from llvmlite import ir

from kanawa_backends_cpu.kernels.attention.flash_code import KEYS, Matrix, Shape, Tiles, cut
from kanawa_backends_cpu.kernels.matmul.native_code import scratch
from kanawa_backends_cpu.native.calls import Operands
from kanawa_backends_cpu.native.code import F32, Code, f32_constant, i64

_Q, _K, _V, _DOUT, _LSE, _DELTA, _DQ, _DK, _DV = 0, 1, 2, 7, 8, 9, 10, 11, 12


def count_items(shape: Shape, code: Code, operands: Operands) -> ir.Value:
    """Emits the number of items: rows times key heads."""
    return code.builder.mul(operands.size(_Q, 0), i64(shape.heads))


def emit_item(shape: Shape, code: Code, operands: Operands, item: ir.Value) -> None:
    """Emits the code of one item."""
    heads = i64(shape.heads)
    _Backward(shape, code, operands, code.builder.sdiv(item, heads), code.builder.srem(item, heads)).emit()


class _Backward(Tiles):
    def emit(self) -> None:
        """Emits the loops over tiles of keys and of lines."""
        code, builder, shape = self.code, self.builder, self.shape
        lines, width, v_width = shape.lines, shape.width, shape.v_width
        of_lines = [lines * width, lines * width, lines * v_width, lines * KEYS, lines * KEYS, lines, lines]
        of_keys = [KEYS * width, KEYS * width, KEYS * width, KEYS * v_width, KEYS * v_width]
        with scratch(code, 4 * sum(of_lines + of_keys)) as memory:
            pointers = cut(code, memory, of_lines + of_keys)
            q, dq, dout, self.weights, self.dscores, self.lse, self.delta = pointers[:7]
            k, k_transposed, dk, v_transposed, dv = pointers[7:]
            weights, dscores = Matrix(self.weights, KEYS), Matrix(self.dscores, KEYS)

            def each(query: ir.Value) -> None:
                self.start_lines(query)
                code.loop(i64(0), self.lines, 1, lambda line: self._clear(_DQ, self.line_at(line), width))

            code.loop(i64(0), self.length, shape.queries, each)

            def lines_of(query: ir.Value) -> None:
                self.start_lines(query)
                with builder.if_then(self.meet()):
                    self.copy_lines(_Q, width, q, shape.scale)
                    self.copy_lines(_DOUT, v_width, dout)
                    code.loop(i64(0), i64(lines), 1, self._copy_sums)
                    self.matmul(Matrix(q, width), Matrix(k_transposed, KEYS), weights, (lines, width, KEYS), add=False)
                    values = Matrix(v_transposed, KEYS)
                    self.matmul(Matrix(dout, v_width), values, dscores, (lines, v_width, KEYS), add=False)
                    code.loop(i64(0), i64(lines), 1, self._weigh)
                    by_key = (KEYS, lines, v_width), (KEYS, lines, width)
                    self.matmul(weights.transposed, Matrix(dout, v_width), Matrix(dv, v_width), by_key[0], add=True)
                    self.matmul(dscores.transposed, Matrix(q, width), Matrix(dk, width), by_key[1], add=True)
                    self.matmul(dscores, Matrix(k, width), Matrix(dq, width), (lines, KEYS, width), add=False)
                    code.loop(i64(0), self.lines, 1, lambda line: self._add(dq, line))

            def keys(base: ir.Value) -> None:
                self.start_keys(base)
                self.copy_keys(_K, width, k)
                self.transpose_keys(_K, width, k_transposed)
                self.transpose_keys(_V, v_width, v_transposed)
                for place, size in ((dk, width), (dv, v_width)):
                    self._fill(place, KEYS * size)
                code.loop(i64(0), self.length, shape.queries, lines_of)
                count = code.min(i64(KEYS), builder.sub(self.keys, base))
                for place, result, size in ((dk, _DK, width), (dv, _DV, v_width)):
                    code.loop(i64(0), count, 1, self._result(place, result, size))

            code.loop(i64(0), self.keys, KEYS, keys)

    def _copy_sums(self, line: ir.Value) -> None:
        """Emits the copy of a line's log-sum-exp and delta, which lie in [B, H, T]."""
        code, builder, shape = self.code, self.builder, self.shape
        own, group = code.min(line, builder.sub(self.lines, i64(1))), i64(shape.group)
        head = builder.add(builder.mul(self.head, group), builder.srem(own, group))
        at = builder.add(builder.mul(self.row, i64(shape.heads * shape.group)), head)
        at = builder.add(builder.mul(at, self.length), builder.add(self.query, builder.sdiv(own, group)))
        for operand, place in ((_LSE, self.lse), (_DELTA, self.delta)):
            code.store(code.load(code.gep(self.operands.data[operand], at, F32), F32), code.gep(place, line, F32))

    def _weigh(self, line: ir.Value) -> None:
        """Emits a line's weights from its scores, and the gradients of its scores from those of its weights."""
        code, builder, lanes = self.code, self.builder, self.shape.lanes
        zero, visible = f32_constant(0.0, lanes), self.visible(line)
        lse, delta = (code.splat(code.load(code.gep(x, line, F32), F32), lanes) for x in (self.lse, self.delta))
        row = builder.mul(line, i64(KEYS))
        for key in range(0, KEYS, lanes):
            at = builder.add(row, i64(key))
            place, gradient = (code.gep(x, at, F32) for x in (self.weights, self.dscores))
            # A line without keys has a log-sum-exp of -inf: what it sees decides, not the number.
            seen = visible(key)
            score = builder.select(seen, builder.fsub(code.load(place, self.wide), lse), zero)
            weight = builder.select(seen, code.exp(score), zero)
            code.store(weight, place)
            slope = code.mul(weight, builder.fsub(code.load(gradient, self.wide), delta))
            code.store(builder.select(seen, slope, zero), gradient)

    def _add(self, dq: ir.Value, line: ir.Value) -> None:
        """Emits the addition of a line's gradient, times the scale, to the result."""
        code, builder, shape = self.code, self.builder, self.shape
        source, to = builder.mul(line, i64(shape.width)), builder.mul(self.line_at(line), i64(shape.width))
        for offset in range(0, shape.width, shape.lanes):
            place = code.gep(self.operands.data[_DQ], builder.add(to, i64(offset)), F32)
            part = code.load(code.gep(dq, builder.add(source, i64(offset)), F32), self.wide)
            code.store(code.fma(part, f32_constant(shape.scale, shape.lanes), code.load(place, self.wide)), place)

    def _result(self, place: ir.Value, result: int, width: int) -> Callable[[ir.Value], None]:
        code, builder = self.code, self.builder

        def row(key: ir.Value) -> None:
            source, to = builder.mul(key, i64(width)), builder.mul(self.key_at(key), i64(width))
            for offset in range(0, width, self.shape.lanes):
                numbers = code.load(code.gep(place, builder.add(source, i64(offset)), F32), self.wide)
                code.store(numbers, code.gep(self.operands.data[result], builder.add(to, i64(offset)), F32))

        return row

    def _clear(self, result: int, at: ir.Value, width: int) -> None:
        place = self.code.gep(self.operands.data[result], self.builder.mul(at, i64(width)), F32)
        for offset in range(0, width, self.shape.lanes):
            self.code.store(f32_constant(0.0, self.shape.lanes), self.code.gep(place, i64(offset), F32))

    def _fill(self, place: ir.Value, size: int) -> None:
        lanes = self.shape.lanes
        self.code.loop(
            i64(0), i64(size), lanes, lambda i: self.code.store(f32_constant(0.0, lanes), self.code.gep(place, i, F32))
        )
