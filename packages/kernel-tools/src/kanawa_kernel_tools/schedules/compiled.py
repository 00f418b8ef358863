"""A kernel alone, compiled for a device that isn't here: what `kanawa kernels --schedule` and a plan look at.

A backend's hook `kanawa_kernel_schedules` does the compiling; here is what it is asked, and what it needs for that.
"""

import functools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.errors import KernelError
from kanawa.kernels.operation import Kernel, Operands
from kanawa.plugins import KernelHalf, KernelSchedule, ScheduleRequest, host
from kanawa.testing.compare import examples_for

#: The worker's answer, in its folder.
ANSWER = "answer.json"
REQUEST = "request.pickle"


def schedules(request: ScheduleRequest) -> list[KernelSchedule]:
    """Returns what the target's compiler makes of each call of the kernel.

    Raises KernelError where no installed backend shows this platform's schedules, or the kernel makes no call of its
    own.
    """
    answers = [answer for _, answer in host().collect("kanawa_kernel_schedules", request=request) if answer is not None]
    if not answers:
        platform = request.target.device.platform
        message = f"no installed backend shows what is compiled for {request.target.selector} ({platform})"
        raise KernelError(message)
    calls = list(answers[0])
    if not calls:
        name = request.kernel.rpartition(":")[2]
        message = (
            f"{name} makes no call of its own: its work is plain JAX, which the compiler fuses with what is around it; "
            f"`kanawa plan` shows what that costs"
        )
        raise KernelError(message)
    return calls


class _Repeated(np.ndarray):
    """One number seen as a whole array, in any dtype: a cache of a thousand sequences wouldn't fit this machine."""

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns as many of the number in another dtype, and again only one of it in memory."""
        del args, kwargs
        return _repeated(self.shape, dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Leaves all as it is: only shapes count."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        """Computes one number of such arrays and of numbers, else whole arrays; none in place: what is seen is one."""
        del out
        alike = all(isinstance(x, _Repeated) or np.ndim(x) == 0 for x in inputs)
        if alike and method == "__call__" and ufunc.nout == 1:
            one = ufunc(*(np.ones((), x.dtype) if isinstance(x, _Repeated) else x for x in inputs), **kwargs)
            return _repeated(np.broadcast_shapes(*map(np.shape, inputs)), one.dtype)
        return getattr(ufunc, method)(*(np.asarray(x) for x in inputs), **kwargs)


def _repeated(shape: Any, dtype: Any) -> Any:
    return np.broadcast_to(np.ones((), dtype).view(_Repeated), shape, subok=True)


class _Ones(np.random.Generator):
    """Numbers of which only shapes count: at real sizes a sweep's random ones take minutes."""

    def standard_normal(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Returns ones: some examples divide by a norm."""
        del args, kwargs
        return _repeated(() if size is None else size, np.float32)


def operand_shapes(operation: str, problem: Any) -> dict[str, Any]:
    """Returns the shapes and dtypes of a problem's operands; raises KernelError for an operation without examples."""
    made = examples_for(operation).operands(problem, _Ones(np.random.PCG64(0)))
    result: dict[str, Any] = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), made)
    return result


def halves(kernel: Kernel, problem: Any, differentiated: bool) -> list[KernelHalf]:
    """Returns the kernel's forward and, where asked for and possible, its backward."""
    operands = operand_shapes(kernel.operation, problem)
    forward = functools.partial(kernel.forward, problem)
    if kernel.autodiff:
        forward = functools.partial(kernel.apply, problem)
    one = KernelHalf("forward", forward, (operands,))
    if not differentiated:
        return [one]
    made = jax.eval_shape(forward, operands)
    out, residuals = (made, None) if kernel.autodiff else made
    cotangents = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), out)
    if kernel.autodiff:
        return [one, KernelHalf("backward", functools.partial(_pullback, kernel, problem), (operands, cotangents))]
    return [
        one,
        KernelHalf("backward", functools.partial(kernel.backward, problem), (operands, out, residuals, cotangents)),
    ]


def _pullback(kernel: Kernel, problem: Any, operands: Operands, cotangents: Any) -> Any:
    floats = {name: x for name, x in operands.items() if jnp.issubdtype(x.dtype, jnp.inexact)}
    rest = {name: x for name, x in operands.items() if name not in floats}
    return jax.vjp(lambda floats: kernel.apply(problem, {**floats, **rest}), floats)[1](cotangents)


def compile_apart(request: ScheduleRequest, folder: Path, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Compiles each Pallas call of a kernel, alone, in a fresh process with further environment variables.

    Compilers read their flags when they are loaded, which in this process may have happened. What the compiler leaves
    in `folder/dump` for the first call is found in `folder/0`, and so on. A call is described by "name", "direction",
    "grid", "flops", those of the matmuls of a step, "outputs", how many blocks are written, and "tables", the scalar
    operands that are constants. Raises
    KernelError with the compiler's words where it refuses, and with the kernel's where it can't be traced.
    """
    (folder / "dump").mkdir(parents=True, exist_ok=True)
    (folder / REQUEST).write_bytes(pickle.dumps(request))
    arguments = [sys.executable, "-P", "-m", "kanawa_kernel_tools.schedules.worker", str(folder)]
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false", **environment}
    done = subprocess.run(arguments, env=variables, capture_output=True, text=True, check=False)
    answer = folder / ANSWER
    if done.returncode or not answer.exists():
        said = [line for line in done.stderr.strip().splitlines() if line.strip()]
        message = f"{request.kernel}: compiling it for {request.target.device.name} ended with {done.returncode}: " + (
            "\n".join(said[-20:]) or "no message"
        )
        raise KernelError(message)
    found = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in found:
        message = f"{request.kernel} for {request.problem.describe()} on {request.target.device.name}: {found['error']}"
        raise KernelError(message)
    calls: list[dict[str, Any]] = found["calls"]
    return calls
