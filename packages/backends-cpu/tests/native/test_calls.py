"""Native functions: what is told where there can be none, and threads that come late, never, or are refused."""

import ctypes
import sys
import threading

import numpy as np
import pytest
from kanawa_backends_cpu.native import available

llvmlite = pytest.importorskip("llvmlite")

calls = pytest.importorskip("kanawa_backends_cpu.native.calls")
llvm = calls.llvm

FLOAT = calls.ir.FloatType()

HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@pytest.fixture
def why_not(monkeypatch):
    """Asks anew, compiling anew."""
    monkeypatch.setattr(calls, "_register", calls._register.__wrapped__)
    return available.why_not.__wrapped__


def test_there_are_native_functions_here():
    assert available.why_not() is None


def _no_llvmlite(monkeypatch):
    monkeypatch.setattr(available.importlib.util, "find_spec", lambda name: None)


def _broken(monkeypatch):
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.setattr(available.importlib.util, "find_spec", lambda name: object())


def _old(monkeypatch):
    monkeypatch.setattr(llvmlite, "__version__", "0.43.0rc1")


def _without_passes(monkeypatch):
    monkeypatch.delattr(llvm.binding, "create_pass_builder")


def _no_yield(monkeypatch):
    monkeypatch.setattr(llvm, "LIBRARY", ("malloc", "sched_surrender"))


def _other_interface(monkeypatch, tmp_path):
    header = tmp_path / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define XLA_FFI_API_MAJOR 7\n")
    monkeypatch.setattr(available.jax.ffi, "include_dir", lambda: str(tmp_path))


REASONS = {
    _no_llvmlite: 'llvmlite isn\'t installed: pip install "kanawa[cpu]"',
    _broken: "llvmlite can't be used here (ModuleNotFoundError: ",
    _old: "llvmlite is 0.43.0rc1, 0.45 or newer is required: pip install --upgrade llvmlite",
    _without_passes: "llvmlite can't be used here (AttributeError: ",
    _no_yield: f"the C library of {sys.platform} lacks sched_surrender, which native functions call",
}


@pytest.mark.parametrize("change", REASONS, ids=lambda change: change.__name__)
def test_what_is_wrong_with_llvm_is_a_reason_and_no_error(why_not, monkeypatch, change):
    change(monkeypatch)
    assert why_not().startswith(REASONS[change])


def test_another_interface_of_jaxlib_is_a_reason(why_not, monkeypatch, tmp_path):
    _other_interface(monkeypatch, tmp_path)
    assert why_not() == "jaxlib's FFI has major version 7; version 0 is required"


def test_a_system_without_a_library_of_the_process_has_none(why_not, monkeypatch):
    def refuse(name):
        message = "bad argument type for built-in operation"
        raise TypeError(message)

    monkeypatch.setattr(available.ctypes, "CDLL", refuse)
    assert "lacks malloc, free, sched_yield" in why_not()


def test_as_many_threads_help_as_the_process_has_cores(monkeypatch):
    for count, helping in ((1, 0), (2, 1), (64, 7)):
        monkeypatch.setattr(calls, "cores", lambda count=count: count)
        assert calls.helper_threads() == helping


class Xla:
    """As much of XLA as a handler sees: a frame of one operand and one result, and a table with a pool of threads."""

    def __init__(self, given, schedule):
        self.result, self.tasks, self.destroyed = np.zeros_like(given), [], 0
        self._kept = [given]
        schedule_at, destroy_at = (calls._api_offsets()[name] // 8 for name in (calls._SCHEDULE, calls._DESTROY))
        table = self._array([0] * (max(schedule_at, destroy_at) + 1))

        def scheduled(arguments):
            _, _, _, task, shared = (ctypes.c_uint64 * 5).from_address(arguments)
            return schedule(self, lambda: TASK(task)(shared))

        def destroy(arguments):
            self.destroyed += 1
            return None

        callbacks = [HANDLER(scheduled), HANDLER(destroy)]
        self._kept += callbacks
        table[schedule_at], table[destroy_at] = (ctypes.cast(each, ctypes.c_void_p).value for each in callbacks)
        buffers = [self._array([self._address(self._buffer(x))]) for x in (given, self.result)]
        operands, results = map(self._address, buffers)
        # struct_size, extension, table, context, stage; operands and results: size, extension, how many, kinds, which.
        facts = [0, 0, self._address(table), 0, 0, 0, 0, 1, 0, operands, 0, 0, 1, 0, results]
        self.frame = self._address(self._array(facts))

    def _buffer(self, x):
        return self._array([0, 0, 0, x.ctypes.data, x.ndim, self._address(self._array(list(x.shape)))])

    def _array(self, words):
        self._kept.append((ctypes.c_uint64 * len(words))(*words))
        return self._kept[-1]

    def _address(self, array):
        return ctypes.addressof(array)


def _now(xla, task):
    thread = threading.Thread(target=task)
    thread.start()
    xla.tasks.append(thread.join)


def _late(xla, task):
    # As on threads that are busy: the caller has done all by itself, and is gone.
    xla.tasks.append(task)


def _never(xla, task):
    # As in a child after a fork, which has none of its parent's threads.
    pass


def _refused(xla, task):
    return 4096


@pytest.fixture(scope="module")
def handler():
    def double(code, operands, item):
        number = code.load(code.gep(operands.data[0], item, FLOAT), FLOAT)
        code.store(code.add(number, number), code.gep(operands.data[1], item, FLOAT))

    made = calls.NativeCall(
        "double", double, lambda code, operands: operands.size(0, 0), operands=1, results=1, threads=3
    )
    return HANDLER(llvm.address(made.text, "handler"))


@pytest.mark.parametrize("schedule", [_now, _late, _never, _refused], ids=lambda way: way.__name__)
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_all_is_done_whoever_helps(handler, schedule, count):
    given = np.arange(count, dtype=np.float32)
    xla = Xla(given, schedule)
    assert handler(xla.frame) is None
    np.testing.assert_array_equal(xla.result, 2 * given)
    # Those that come later find nothing to do, and touch nothing of what the caller had.
    xla.result[:] = -1
    for task in xla.tasks:
        task()
    np.testing.assert_array_equal(xla.result, -1)
    assert xla.destroyed == (3 if schedule is _refused else 0)
