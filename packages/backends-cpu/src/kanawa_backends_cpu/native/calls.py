"""NativeCall: a function compiled by LLVM, called by XLA, its work items spread over cores.

XLA calls a *handler* with one pointer to a call frame, which holds operands, results and XLA's thread pool. The frame's
layout is that of XLA's FFI (jaxlib's `xla/ffi/api/c_api.h`), which is versioned and only appends fields.
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

from kanawa_backends_cpu.native import llvm
from kanawa_backends_cpu.native.code import I32, I64, POINTER, Code, i64
from kanawa_backends_cpu.processor import cores

#: Byte offsets in a call frame: of the extension, the API table, the execution context, and the operand and result
#: buffers.
_EXTENSION, _API, _CONTEXT, _OPERANDS, _RESULTS = 8, 16, 24, 72, 112
#: Byte offsets in a buffer: of its data and its dimensions.
_DATA, _DIMENSIONS = 24, 40
#: Byte offsets in the API table: of its version and of its first function; the names of those that are called.
_API_VERSION, _FIRST_FUNCTION = 32, 48
_SCHEDULE, _DESTROY = "XLA_FFI_ThreadPool_Schedule", "XLA_FFI_Error_Destroy"
_XLA_CALL = ir.FunctionType(POINTER, [POINTER]).as_pointer()
#: Byte offsets in an extension: of its type and its metadata, and in those of the version; the type that asks for them.
_KIND, _METADATA, _METADATA_VERSION = 8, 24, 24
_METADATA_KIND = 1
#: Sizes of the argument structures of _SCHEDULE and _DESTROY.
_TASK_BYTES, _ERROR_BYTES = 40, 24
#: Byte offsets in the state that threads share: the next item, finished items, threads that hold the state, the call
#: frame, the number of items.
_NEXT, _FINISHED, _HOLDERS, _FRAME, _TOTAL, _SHARED_BYTES = 0, 8, 16, 24, 32, 40
#: Waking more threads takes as long as a short function runs.
_MOST_HELPERS = 7

_REGISTERING = threading.Lock()

#: Emits the code of the work item of an index.
Body = Callable[[Code, "Operands", ir.Value], None]


class Operands:
    """A function's buffers, results after operands: `data[i]` points to the elements of buffer i."""

    def __init__(self, code: Code, frame: ir.Value, operands: int, results: int) -> None:
        self._code = code
        self._buffers = [self._buffer(frame, _OPERANDS, at) for at in range(operands)]
        self._buffers += [self._buffer(frame, _RESULTS, at) for at in range(results)]
        self.data = [code.load(_field(code, buffer, _DATA), POINTER) for buffer in self._buffers]

    def size(self, operand: int, axis: int) -> ir.Value:
        """Returns the size of a buffer's dimension."""
        dimensions = self._code.load(_field(self._code, self._buffers[operand], _DIMENSIONS), POINTER)
        return self._code.load(_field(self._code, dimensions, 8 * axis), I64)

    def _buffer(self, frame: ir.Value, offset: int, at: int) -> ir.Value:
        buffers = self._code.load(_field(self._code, frame, offset), POINTER)
        return self._code.load(_field(self._code, buffers, 8 * at), POINTER)


class NativeCall:
    """A native function run once per work item; items are spread over cores.

    Args:
        name: part of the name under which programs call it.
        body: emits the code of one item.
        items: emits the code that counts the items.
        operands, results: how many buffers of each there are.
        threads: how many help the calling thread; by default `helper_threads()`.
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
        self._helpers = helper_threads() if threads is None else threads
        #: LLVM's intermediate representation, for any processor.
        self.text = str(self._module())
        # Named by its text: a program loaded from the compile cache must never call another function.
        digest = hashlib.sha256("\n".join((self.text, *llvm.host())).encode()).hexdigest()
        self.target = f"kanawa_{name}_{digest[:16]}"
        # Several threads trace programs at once, and XLA accepts a name once.
        with _REGISTERING:
            _register(self.target, self.text)

    def __call__(self, results: Sequence[jax.ShapeDtypeStruct], *operands: jax.Array | np.ndarray) -> Any:
        """Returns the results; operands are row-major."""
        # The code expects operands of fixed rank, so vmap calls it once for each example.
        return jax.ffi.ffi_call(self.target, results, vmap_method="sequential")(*operands)

    def _module(self) -> ir.Module:
        module = ir.Module()
        module.triple = binding.get_process_triple()
        work = self._work(module)
        self._handler(module, work, self._task(module, work))
        return module

    def _work(self, module: ir.Module) -> ir.Function:
        """Emits `work(shared)`: takes items until none is left."""
        function, code = _function(module, "work", ir.VoidType())
        builder, (shared,) = code.builder, function.args
        total = code.load(_field(code, shared, _TOTAL), I64)
        take, run, done = (builder.append_basic_block(name) for name in ("take", "run", "done"))
        builder.branch(take)
        builder.position_at_end(take)
        item = builder.atomic_rmw("add", _field(code, shared, _NEXT), i64(1), "monotonic")
        builder.cbranch(builder.icmp_signed("<", item, total), run, done)
        builder.position_at_end(run)
        # Not earlier: the caller only waits for items, so the frame may be freed once none is left.
        frame = code.load(_field(code, shared, _FRAME), POINTER)
        self._body(code, Operands(code, frame, *self._counts), item)
        builder.atomic_rmw("add", _field(code, shared, _FINISHED), i64(1), "release")
        builder.branch(take)
        builder.position_at_end(done)
        builder.ret_void()
        return function

    def _task(self, module: ir.Module, work: ir.Function) -> ir.Function:
        """Emits `task(shared)`, which a helper thread runs, possibly after the call has returned."""
        function, code = _function(module, "task", ir.VoidType())
        (shared,) = function.args
        code.builder.call(work, [shared])
        _release(code, shared)
        code.builder.ret_void()
        return function

    def _handler(self, module: ir.Module, work: ir.Function, task: ir.Function) -> None:
        """Emits `handler(frame)`: schedules helpers, works itself, and waits until all items are finished."""
        function, code = _function(module, "handler", POINTER)
        builder, (frame,) = code.builder, function.args
        null = ir.Constant(POINTER, None)
        self._answer_metadata(code, frame)
        allocate = code.library_function("malloc", POINTER, I64)
        shared = builder.call(allocate, [i64(_SHARED_BYTES)])
        total = self._items(code, Operands(code, frame, *self._counts))
        offsets = (_NEXT, _FINISHED, _HOLDERS, _FRAME, _TOTAL)
        values = (i64(0), i64(0), i64(1 + self._helpers), frame, total)
        for offset, value in zip(offsets, values, strict=True):
            code.store(value, _field(code, shared, offset))
        self._schedule_helpers(code, frame, shared, task)
        builder.call(work, [shared])
        wait, rest, done = (builder.append_basic_block(name) for name in ("wait", "rest", "done"))
        builder.branch(wait)
        builder.position_at_end(wait)
        finished = builder.load_atomic(_field(code, shared, _FINISHED), "acquire", 8, typ=I64)
        builder.cbranch(builder.icmp_signed("<", finished, total), rest, done)
        builder.position_at_end(rest)
        # The thread that runs the last item may be waiting for a core: yield this one.
        builder.call(code.library_function("sched_yield", I32), [])
        builder.branch(wait)
        builder.position_at_end(done)
        _release(code, shared)
        builder.ret(null)

    def _answer_metadata(self, code: Code, frame: ir.Value) -> None:
        """Emits the return from a call that asks for the FFI version instead of running the function."""
        builder, null = code.builder, ir.Constant(POINTER, None)
        extension = code.load(_field(code, frame, _EXTENSION), POINTER)
        with builder.if_then(builder.icmp_unsigned("!=", extension, null)):
            kind = code.load(_field(code, extension, _KIND), I32)
            with builder.if_then(builder.icmp_unsigned("==", kind, ir.Constant(I32, _METADATA_KIND))):
                # The version of the caller's own table: only fields that never moved are read here.
                metadata = code.load(_field(code, extension, _METADATA), POINTER)
                api = code.load(_field(code, frame, _API), POINTER)
                version = code.load(_field(code, api, _API_VERSION), I64)
                code.store(version, _field(code, metadata, _METADATA_VERSION))
                builder.ret(null)

    def _schedule_helpers(self, code: Code, frame: ir.Value, shared: ir.Value, task: ir.Function) -> None:
        """Emits one call of XLA's thread pool per helper; a refused one leaves its items to the others."""
        if not self._helpers:
            return
        builder, null = code.builder, ir.Constant(POINTER, None)
        api = code.load(_field(code, frame, _API), POINTER)
        offsets = _api_offsets()
        schedule, destroy = (code.load(_field(code, api, offsets[name]), _XLA_CALL) for name in (_SCHEDULE, _DESTROY))
        context = code.load(_field(code, frame, _CONTEXT), POINTER)
        fields = ((0, i64(_TASK_BYTES)), (8, null), (16, context), (24, task), (32, shared))
        arguments = code.alloca_bytes(_TASK_BYTES)
        for _ in range(self._helpers):
            for offset, value in fields:
                code.store(value, _field(code, arguments, offset))
            error = builder.call(schedule, [arguments])
            with builder.if_then(builder.icmp_unsigned("!=", error, null)):
                for offset, value in ((0, i64(_ERROR_BYTES)), (8, null), (16, error)):
                    code.store(value, _field(code, arguments, offset))
                builder.call(destroy, [arguments])
                _release(code, shared)


def helper_threads() -> int:
    """Returns how many of XLA's threads help a call; none where jaxlib has no header that says how to schedule them."""
    return min(_MOST_HELPERS, cores() - 1) if _api_offsets() else 0


@functools.cache
def _api_offsets() -> dict[str, int]:
    """Returns the byte offset of each function in XLA's API table, by the installed jaxlib's header."""
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    try:
        text = header.read_text(encoding="utf-8")
    except OSError:
        return {}
    names = re.findall(r"^\s*_XLA_FFI_API_STRUCT_FIELD\((\w+)\);", text, re.MULTILINE)
    offsets = {name: _FIRST_FUNCTION + 8 * at for at, name in enumerate(names)}
    return offsets if {_SCHEDULE, _DESTROY} <= offsets.keys() else {}


@functools.cache
def _register(target: str, text: str) -> None:
    """Compiles a module and registers its handler with XLA for the life of the process."""
    handler = ctypes.c_void_p(llvm.address(text, "handler"))
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handler), platform="cpu", api_version=1)


def _function(module: ir.Module, name: str, result: ir.Type) -> tuple[ir.Function, Code]:
    """Returns a function of one pointer and its Code; the entry block is reserved for allocas."""
    function = ir.Function(module, ir.FunctionType(result, [POINTER]), name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    start = function.append_basic_block("start")
    builder.branch(start)
    builder.position_at_end(start)
    return function, Code(builder)


def _field(code: Code, pointer: ir.Value, offset: int) -> ir.Value:
    """Returns the pointer `offset` bytes behind another."""
    return code.gep(pointer, i64(offset), ir.IntType(8))


def _release(code: Code, shared: ir.Value) -> None:
    """Emits that a thread no longer needs the shared state; the last one frees it."""
    builder = code.builder
    before = builder.atomic_rmw("sub", _field(code, shared, _HOLDERS), i64(1), "acq_rel")
    with builder.if_then(builder.icmp_signed("==", before, i64(1))):
        builder.call(code.library_function("free", ir.VoidType(), POINTER), [shared])
