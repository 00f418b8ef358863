"""An interpreter of the NKI subset that this package's kernels use, under NKI's own name.

Kernels run as they stand, in NumPy, with the hardware's rules enforced: memories and their sizes, partitions, tile
limits, element types, what was never written, what lies outside. Written from AWS's public documentation (NKI 0.7).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from nki._machine import Machine, RuleBrokenError, running
from nki._tensor import Storage, Tensor

__all__ = ["Machine", "RuleBrokenError", "jit", "simulate"]


class Launched:
    """A kernel for a number of programs; called with NumPy arrays, it runs."""

    def __init__(self, function: Callable[..., Any], programs: int = 1, *, backwards: bool = False) -> None:
        self.function, self.programs, self.backwards = function, programs, backwards
        self.machine = Machine()

    def __getitem__(self, programs: int) -> "Launched":
        """Returns the kernel launched on that many cores of a logical core."""
        return Launched(self.function, programs, backwards=self.backwards)

    def __call__(self, *args: Any) -> Any:
        """Returns the kernel's outputs as arrays; each element must have been written."""
        self.machine = Machine(self.programs, self.backwards)
        with running(self.machine) as here:
            inputs = [_tensor(x) if isinstance(x, np.ndarray) else x for x in args]
            for program in range(self.programs):
                here.program, here.met = program, 0
                outputs = self.function(*inputs)
            single = isinstance(outputs, Tensor)
            arrays = [_array(x) for x in ((outputs,) if single else outputs)]
        return arrays[0] if single else tuple(arrays)


def _tensor(array: np.ndarray) -> Tensor:
    storage = Storage(array.shape, array.dtype, "hbm", writable=False)
    storage.values[...] = array
    storage.written[...] = True
    return Tensor(storage)


def _array(output: Tensor) -> np.ndarray:
    if output.space != "shared_hbm":
        message = f"an output lies in {output.space}; it must be in shared_hbm"
        raise RuleBrokenError(message)
    return output.read()


def jit(function: Callable[..., Any]) -> Launched:
    """Returns the kernel as a callable."""
    return Launched(function)


def simulate(kernel: Any, *, backwards: bool = False) -> Launched:
    """Returns the kernel as a callable on NumPy arrays; `backwards` runs device loops from their ends."""
    if isinstance(kernel, Launched):
        return Launched(kernel.function, kernel.programs, backwards=backwards)
    return Launched(kernel, backwards=backwards)
