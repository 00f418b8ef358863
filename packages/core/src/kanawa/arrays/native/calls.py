"""NativeCall: a function that LLVM compiled as a call of XLA's, its items dealt to all cores.

XLA calls a *handler* with one pointer to a frame, where it finds operands, results and XLA's own threads. The frame's
layout is that of XLA's C interface (jaxlib's `xla/ffi/api/c_api.h`), which is versioned and grows only at its ends.
"""

import ctypes
import functools
import hashlib
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from llvmlite import binding, ir

from kanawa.arrays.cores import cores
from kanawa.arrays.native import llvm
from kanawa.arrays.native.code import I32, I64, POINTER, Code, index

#: Bytes from a frame's start to: an extension, XLA's table of functions, the run's context, the list of operands,
#: and that of results.
_EXTENSION, _API, _CONTEXT, _OPERANDS, _RESULTS = 8, 16, 24, 72, 112
#: From a buffer's start to its numbers and its dimensions.
_NUMBERS, _DIMENSIONS = 24, 40
#: From the table's start to its version and to its first function; the names of those that are called.
_API_VERSION, _FIRST_FUNCTION = 32, 48
_SCHEDULE, _DESTROY = "XLA_FFI_ThreadPool_Schedule", "XLA_FFI_Error_Destroy"
_XLA_CALL = ir.FunctionType(POINTER, [POINTER]).as_pointer()
#: From an extension's start to its kind and to what it asks to be told, and from there to the version; which kind asks.
_KIND, _ASKED, _ASKED_VERSION = 8, 24, 24
_METADATA = 1
#: Bytes of the arguments of either.
_TASK_BYTES, _ERROR_BYTES = 40, 24
#: What threads share: the next item, how many are finished, how many threads may still look, the frame, and how many
#: items there are.
_NEXT, _FINISHED, _LOOKING, _FRAME, _TOTAL, _SHARED_BYTES = 0, 8, 16, 24, 32, 40
#: Waking a thread takes as long as a short function does.
_MOST_HELPERS = 7

_REGISTERING = threading.Lock()

#: A function's body: it writes the code of the item of that index.
Body = Callable[[Code, "Operands", ir.Value], None]


class Operands:
    """What a body reads and writes: `numbers[i]` points to those of operand i, results after operands."""

    def __init__(self, code: Code, frame: ir.Value, operands: int, results: int) -> None:
        self._code = code
        self._buffers = [self._buffer(frame, _OPERANDS, at) for at in range(operands)]
        self._buffers += [self._buffer(frame, _RESULTS, at) for at in range(results)]
        self.numbers = [code.get(_past(code, buffer, _NUMBERS), POINTER) for buffer in self._buffers]

    def size(self, operand: int, axis: int) -> ir.Value:
        """Returns the size of an operand's dimension."""
        dimensions = self._code.get(_past(self._code, self._buffers[operand], _DIMENSIONS), POINTER)
        return self._code.get(_past(self._code, dimensions, 8 * axis), I64)

    def _buffer(self, frame: ir.Value, offset: int, at: int) -> ir.Value:
        buffers = self._code.get(_past(self._code, frame, offset), POINTER)
        return self._code.get(_past(self._code, buffers, 8 * at), POINTER)


class NativeCall:
    """A function over items, each of which any core may do.

    Args:
        name: what programs call it.
        body: writes the code of one item.
        items: writes the code that counts them.
        operands, results: how many of each there are.
        threads: how many may help the one that calls it; by default `helpers()`.
    """

    def __init__(
        self,
        name: str,
        body: Body,
        items: Callable[[Code, Operands], ir.Value],
        *,
        operands: int,
        results: int,
        threads: int | None = None,
    ) -> None:
        self._body, self._items, self._counts = body, items, (operands, results)
        self._helpers = helpers() if threads is None else threads
        #: Its instructions, for any processor.
        self.text = str(self._module())
        # By its text: a program kept on disk must never meet another function under the name it knows.
        digest = hashlib.sha256("\n".join((self.text, *llvm.host())).encode()).hexdigest()
        self.target = f"kanawa_{name}_{digest[:16]}"
        # Programs are traced in several threads at once, and XLA takes a name once.
        with _REGISTERING:
            _register(self.target, self.text)

    def __call__(self, results: Sequence[jax.ShapeDtypeStruct], *operands: jax.Array | np.ndarray) -> Any:
        """Returns the results; operands lie row by row."""
        # Its code knows so many dimensions and no more: under vmap it is called once for each.
        return jax.ffi.ffi_call(self.target, results, vmap_method="sequential")(*operands)

    def _module(self) -> ir.Module:
        module = ir.Module()
        module.triple = binding.get_process_triple()
        work = self._work(module)
        self._handler(module, work, self._task(module, work))
        return module

    def _work(self, module: ir.Module) -> ir.Function:
        """Writes `work(shared)`: takes the next item until none is left."""
        function, code = _function(module, "work", ir.VoidType())
        builder, (shared,) = code.builder, function.args
        total = code.get(_past(code, shared, _TOTAL), I64)
        take, mine, done = (builder.append_basic_block(name) for name in ("take", "mine", "done"))
        builder.branch(take)
        builder.position_at_end(take)
        item = builder.atomic_rmw("add", _past(code, shared, _NEXT), index(1), "monotonic")
        builder.cbranch(builder.icmp_signed("<", item, total), mine, done)
        builder.position_at_end(mine)
        # Not before: without an item the frame may be gone, for the call that it belongs to waits for items alone.
        frame = code.get(_past(code, shared, _FRAME), POINTER)
        self._body(code, Operands(code, frame, *self._counts), item)
        builder.atomic_rmw("add", _past(code, shared, _FINISHED), index(1), "release")
        builder.branch(take)
        builder.position_at_end(done)
        builder.ret_void()
        return function

    def _task(self, module: ir.Module, work: ir.Function) -> ir.Function:
        """Writes `task(shared)`, which another thread runs, perhaps long after all is done."""
        function, code = _function(module, "task", ir.VoidType())
        (shared,) = function.args
        code.builder.call(work, [shared])
        _let_go(code, shared)
        code.builder.ret_void()
        return function

    def _handler(self, module: ir.Module, work: ir.Function, task: ir.Function) -> None:
        """Writes `handler(frame)`: hands the work to other threads, does what they leave, and waits for theirs."""
        function, code = _function(module, "handler", POINTER)
        builder, (frame,) = code.builder, function.args
        null = ir.Constant(POINTER, None)
        extension = code.get(_past(code, frame, _EXTENSION), POINTER)
        with builder.if_then(builder.icmp_unsigned("!=", extension, null)):
            kind = code.get(_past(code, extension, _KIND), I32)
            with builder.if_then(builder.icmp_unsigned("==", kind, ir.Constant(I32, _METADATA))):
                # Not a run: XLA asks for which version of its interface this was made. It is read by none of its
                # fields that ever moved.
                asked = code.get(_past(code, extension, _ASKED), POINTER)
                version = code.get(_past(code, code.get(_past(code, frame, _API), POINTER), _API_VERSION), I64)
                code.put(version, _past(code, asked, _ASKED_VERSION))
                builder.ret(null)
        allocate = code.library("malloc", POINTER, I64)
        shared = builder.call(allocate, [index(_SHARED_BYTES)])
        total = self._items(code, Operands(code, frame, *self._counts))
        places = (_NEXT, _FINISHED, _LOOKING, _FRAME, _TOTAL)
        values = (index(0), index(0), index(1 + self._helpers), frame, total)
        for place, value in zip(places, values, strict=True):
            code.put(value, _past(code, shared, place))
        self._hand_over(code, frame, shared, task)
        builder.call(work, [shared])
        wait, done = builder.append_basic_block("wait"), builder.append_basic_block("done")
        builder.branch(wait)
        builder.position_at_end(wait)
        # The thread that has the last item may not be running: it gets this one's time where it waits for a core.
        builder.call(code.library("sched_yield", I32), [])
        finished = builder.load_atomic(_past(code, shared, _FINISHED), "acquire", 8, typ=I64)
        builder.cbranch(builder.icmp_signed("<", finished, total), wait, done)
        builder.position_at_end(done)
        _let_go(code, shared)
        builder.ret(null)

    def _hand_over(self, code: Code, frame: ir.Value, shared: ir.Value, task: ir.Function) -> None:
        """Writes one call of XLA's for each helper; what one of them is refused, the others do."""
        if not self._helpers:
            return
        builder, null = code.builder, ir.Constant(POINTER, None)
        api = code.get(_past(code, frame, _API), POINTER)
        schedule, destroy = (code.get(_past(code, api, _places()[name]), _XLA_CALL) for name in (_SCHEDULE, _DESTROY))
        context = code.get(_past(code, frame, _CONTEXT), POINTER)
        given = ((0, index(_TASK_BYTES)), (8, null), (16, context), (24, task), (32, shared))
        arguments = code.memory(_TASK_BYTES)
        for _ in range(self._helpers):
            for place, value in given:
                code.put(value, _past(code, arguments, place))
            error = builder.call(schedule, [arguments])
            with builder.if_then(builder.icmp_unsigned("!=", error, null)):
                for place, value in ((0, index(_ERROR_BYTES)), (8, null), (16, error)):
                    code.put(value, _past(code, arguments, place))
                builder.call(destroy, [arguments])
                _let_go(code, shared)


def helpers() -> int:
    """Returns how many threads of XLA's may help one that calls: none where jaxlib doesn't say how to ask for them."""
    return min(_MOST_HELPERS, cores() - 1) if _places() else 0


@functools.cache
def _places() -> dict[str, int]:
    """Returns from the start of XLA's table to each function, as the installed jaxlib's header has them."""
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    try:
        text = header.read_text(encoding="utf-8")
    except OSError:
        return {}
    names = re.findall(r"^\s*_XLA_FFI_API_STRUCT_FIELD\((\w+)\);", text, re.MULTILINE)
    places = {name: _FIRST_FUNCTION + 8 * at for at, name in enumerate(names)}
    return places if {_SCHEDULE, _DESTROY} <= places.keys() else {}


@functools.cache
def _register(target: str, text: str) -> None:
    """Compiles a module and gives its handler to XLA, under a name that is its own for as long as the process."""
    handler = ctypes.c_void_p(llvm.address(text, "handler"))
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handler), platform="cpu", api_version=1)


def _function(module: ir.Module, name: str, result: ir.Type) -> tuple[ir.Function, Code]:
    """Returns a function of one pointer, and what writes it; its first block is left to variables."""
    function = ir.Function(module, ir.FunctionType(result, [POINTER]), name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    start = function.append_basic_block("start")
    builder.branch(start)
    builder.position_at_end(start)
    return function, Code(builder)


def _past(code: Code, pointer: ir.Value, offset: int) -> ir.Value:
    return code.at(pointer, index(offset), ir.IntType(8))


def _let_go(code: Code, shared: ir.Value) -> None:
    """Writes that one thread is done with what is shared; the last one frees it."""
    builder = code.builder
    before = builder.atomic_rmw("sub", _past(code, shared, _LOOKING), index(1), "acq_rel")
    with builder.if_then(builder.icmp_signed("==", before, index(1))):
        builder.call(code.library("free", ir.VoidType(), POINTER), [shared])
