"""nki.language: tensors, types, loops and the operators that instructions are given."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from nki._machine import PARTITIONS, PSUM_BANK_BYTES, machine, require
from nki._tensor import Register, Slice, Storage, Tensor

sbuf, psum, hbm, private_hbm, shared_hbm = "sbuf", "psum", "hbm", "private_hbm", "shared_hbm"
float32, float16, bfloat16 = np.dtype("float32"), np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)
int32, uint32, int16, uint16, int8, uint8 = (np.dtype(x) for x in ("i4", "u4", "i2", "u2", "i1", "u1"))
NkiTensor = Tensor


class tile_size:  # noqa: N801
    """Sizes of the hardware."""

    pmax = PARTITIONS
    psum_fmax = PSUM_BANK_BYTES // 4
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512


@dataclass(frozen=True)
class Operator:
    """What an instruction computes element by element."""

    name: str
    apply: Callable[..., Any]
    #: For a reduction: the ufunc.
    reduce: Any = None
    #: An activation function of the Scalar Engine, of one argument.
    activation: bool = False


def _binary(name: str, ufunc: Any, reduces: bool = False) -> Operator:
    return Operator(name, lambda a, b: ufunc(a, b).astype(np.float32), ufunc if reduces else None)


add, multiply = _binary("add", np.add, True), _binary("multiply", np.multiply, True)
maximum, minimum = _binary("maximum", np.maximum, True), _binary("minimum", np.minimum, True)
subtract = _binary("subtract", np.subtract)
equal, not_equal = _binary("equal", np.equal), _binary("not_equal", np.not_equal)
less, less_equal = _binary("less", np.less), _binary("less_equal", np.less_equal)
greater, greater_equal = _binary("greater", np.greater), _binary("greater_equal", np.greater_equal)


def _activation(name: str, function: Callable[[np.ndarray], np.ndarray]) -> Operator:
    return Operator(name, function, activation=True)


exp, tanh, log = _activation("exp", np.exp), _activation("tanh", np.tanh), _activation("log", np.log)
copy, square = _activation("copy", lambda x: x), _activation("square", np.square)
sqrt, rsqrt = _activation("sqrt", np.sqrt), _activation("rsqrt", lambda x: 1 / np.sqrt(x))


def ndarray(shape: Any, dtype: Any, buffer: str = sbuf, name: str = "") -> Tensor:
    """Returns a new tensor that holds nothing yet; in shared HBM every program gets the same one."""
    del name
    require(buffer in (sbuf, psum, hbm, private_hbm, shared_hbm), f"buffer {buffer!r}")
    if buffer != shared_hbm:
        return Tensor(Storage(tuple(shape), dtype, buffer))
    here = machine()
    if here.met == len(here.shared):
        require(here.program == 0, "programs allocate different tensors in shared HBM")
        here.shared.append(Storage(tuple(shape), dtype, buffer))
    storage = here.shared[here.met]
    here.met += 1
    require(storage.values.shape == tuple(shape), "programs allocate different tensors in shared HBM")
    return Tensor(storage)


def ds(start: int, size: int) -> Slice:
    """Returns a slice of `size` elements from `start` on."""
    return Slice(start, size)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Register], Any], step: int = 1) -> None:
    """Runs a device loop: `body_fun` is given a register."""
    first, end = (x.value if isinstance(x, Register) else x for x in (lower, upper))
    numbers = range(first, end, step)
    here = machine()
    for number in reversed(numbers) if here.backwards else numbers:
        here.loop_depth += 1
        try:
            result = body_fun(Register(number))
        finally:
            here.loop_depth -= 1
        require(result is None, "a loop's body returned something: state goes through SBUF or HBM")


def affine_range(start: int, stop: int | None = None, step: int = 1) -> Iterator[int]:
    """Yields the numbers of a loop whose iterations don't depend on each other, in no order to count on."""
    numbers = list(range(start) if stop is None else range(start, stop, step))
    np.random.default_rng(len(numbers)).shuffle(numbers)
    yield from numbers


def program_id(axis: int) -> int:
    """Returns which of the logical core's programs this is."""
    require(axis == 0, f"axis {axis}: programs are numbered along one axis")
    return machine().program


def num_programs(axes: int = 0) -> int:
    """Returns how many programs the kernel was launched with."""
    require(axes == 0, f"axis {axes}: programs are numbered along one axis")
    return machine().programs
