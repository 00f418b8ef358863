"""Whether this process can compile and call native functions."""

import ctypes
import functools
import importlib.util
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

if TYPE_CHECKING:
    from llvmlite import ir

    from kanawa_backends_cpu.native.calls import Operands
    from kanawa_backends_cpu.native.code import Code

#: The oldest llvmlite with the passes and pointers that are used.
_OLDEST = (0, 45)
#: Major version of XLA's FFI; with another one, a frame's fields have other offsets.
_FFI_MAJOR = 0
_INSTALL = 'pip install "kanawa[cpu]"'


@functools.cache
def why_not() -> str | None:
    """Returns why this process can't have native functions, or None; compiles and runs one small function.

    A broken, old or foreign llvmlite is a reason, never an error: callers have another implementation.
    """
    try:
        if importlib.util.find_spec("llvmlite") is None:
            return f"llvmlite isn't installed: {_INSTALL}"
        return _old_llvmlite() or _missing_functions() or _failed_self_test()
    except Exception as error:
        # Loading a library and compiling may fail in as many ways as there are systems.
        return f"llvmlite can't be used here ({type(error).__name__}: {error}); reinstall it: {_INSTALL}"


def _old_llvmlite() -> str | None:
    import llvmlite

    version = tuple(int(number) for number in re.findall(r"\d+", llvmlite.__version__)[:2])
    if version >= _OLDEST:
        return None
    oldest = ".".join(map(str, _OLDEST))
    return f"llvmlite is {llvmlite.__version__}, {oldest} or newer is required: pip install --upgrade llvmlite"


def _missing_functions() -> str | None:
    from kanawa_backends_cpu.native import llvm

    lacking = [name for name in llvm.LIBRARY if not _is_in_library(name)]
    if lacking:
        return f"the C library of {sys.platform} lacks {', '.join(lacking)}, which native functions call"
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    if header.is_file():
        major = re.search(r"^#define XLA_FFI_API_MAJOR (\d+)", header.read_text(encoding="utf-8"), re.MULTILINE)
        if major is not None and int(major[1]) != _FFI_MAJOR:
            return f"jaxlib's FFI has major version {major[1]}; version {_FFI_MAJOR} is required"
    return None


def _is_in_library(name: str) -> bool:
    try:
        return hasattr(ctypes.CDLL(None), name)
    except (OSError, TypeError):
        # Windows has no library of the process itself, and no sched_yield in any.
        return False


def _failed_self_test() -> str | None:
    from kanawa_backends_cpu.native.calls import NativeCall
    from kanawa_backends_cpu.native.code import F32

    def double(code: "Code", operands: "Operands", item: "ir.Value") -> None:
        number = code.load(code.gep(operands.data[0], item, F32), F32)
        code.store(code.add(number, number), code.gep(operands.data[1], item, F32))

    def items(code: "Code", operands: "Operands") -> "ir.Value":
        return operands.size(0, 0)

    numbers = np.arange(5, dtype=np.float32)
    function = NativeCall("self_test", double, items, operands=1, results=1)
    # It may run while something is traced; the call must not become part of that trace.
    with jax.default_device(jax.local_devices(backend="cpu")[0]), jax.ensure_compile_time_eval():
        (doubled,) = jax.jit(lambda x: function([jax.ShapeDtypeStruct(x.shape, x.dtype)], x))(numbers)
        correct = np.array_equal(np.asarray(doubled), 2 * numbers)
    return None if correct else "the LLVM self-test returned wrong values"
