"""Whether native functions can be made here, asked before anything is built on them."""

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

    from kanawa.arrays.native.calls import Operands
    from kanawa.arrays.native.code import Code

#: The oldest llvmlite whose passes and pointers are those that are used.
_OLDEST = (0, 45)
#: Of XLA's interface; with another one, fields of a frame lie elsewhere.
_INTERFACE = 0
_INSTALL = 'pip install "kanawa[cpu]"'


@functools.cache
def why_not() -> str | None:
    """Returns why this process can have no native function, or None; found by one small function.

    A llvmlite that is broken, too old or built for another system is a reason, never an error: what asks has another
    way of doing the same.
    """
    try:
        if importlib.util.find_spec("llvmlite") is None:
            return f"llvmlite isn't installed: {_INSTALL}"
        return _too_old() or _without() or _tried()
    except Exception as error:
        # Loading a library and compiling may fail in as many ways as there are systems.
        return f"llvmlite can't be used here ({type(error).__name__}: {error}); install it again: {_INSTALL}"


def _too_old() -> str | None:
    import llvmlite

    version = tuple(int(number) for number in re.findall(r"\d+", llvmlite.__version__)[:2])
    if version >= _OLDEST:
        return None
    oldest = ".".join(map(str, _OLDEST))
    return f"llvmlite is {llvmlite.__version__}; it takes {oldest} or newer: pip install --upgrade llvmlite"


def _without() -> str | None:
    from kanawa.arrays.native import llvm

    lacking = [name for name in llvm.LIBRARY if not _is_in_library(name)]
    if lacking:
        return f"the C library of {sys.platform} has no {' and no '.join(lacking)}, which native functions call"
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    if header.is_file():
        major = re.search(r"^#define XLA_FFI_API_MAJOR (\d+)", header.read_text(encoding="utf-8"), re.MULTILINE)
        if major is not None and int(major[1]) != _INTERFACE:
            return f"jaxlib's interface for functions is of version {major[1]}; this is written for {_INTERFACE}"
    return None


def _is_in_library(name: str) -> bool:
    try:
        return hasattr(ctypes.CDLL(None), name)
    except (OSError, TypeError):
        # Windows has no library of the process itself, and no sched_yield in any.
        return False


def _tried() -> str | None:
    from kanawa.arrays.native.calls import NativeCall
    from kanawa.arrays.native.code import F32

    def double(code: "Code", operands: "Operands", item: "ir.Value") -> None:
        number = code.get(code.at(operands.numbers[0], item, F32), F32)
        code.put(code.add(number, number), code.at(operands.numbers[1], item, F32))

    def items(code: "Code", operands: "Operands") -> "ir.Value":
        return operands.size(0, 0)

    given = np.arange(5, dtype=np.float32)
    function = NativeCall("trial", double, items, operands=1, results=1)
    # It may be asked while something is traced, whose trace the call must not become part of.
    with jax.default_device(jax.local_devices(backend="cpu")[0]), jax.ensure_compile_time_eval():
        (told,) = jax.jit(lambda x: function([jax.ShapeDtypeStruct(x.shape, x.dtype)], x))(given)
        right = np.array_equal(np.asarray(told), 2 * given)
    return None if right else "a function of LLVM's told XLA wrong numbers"
