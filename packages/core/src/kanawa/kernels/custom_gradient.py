"""The one custom_vjp: a kernel's own forward and backward in place of JAX's."""

import functools
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from kanawa.errors import KernelError
from kanawa.kernels.choice import scope_name
from kanawa.kernels.operation import Kernel, Operands, Problem
from kanawa.module.context import find_context
from kanawa.plugins.fault import named_after


def call(kernel: Kernel, problem: Problem, operands: Operands) -> Any:
    """Returns the kernel's output, differentiable in every floating-point operand."""
    if kernel.autodiff:
        return applied(kernel, problem, operands)
    context = find_context()
    return _call(kernel, problem, context is not None and context.train, dict(operands))


def applied(kernel: Kernel, problem: Problem, operands: Operands) -> Any:
    """Returns the kernel's output alone, without a gradient of its own; raises KernelError for one of another form."""
    with _scope(kernel, problem):
        return check_result(kernel, problem, operands, kernel.apply(problem, operands))


def check_result(kernel: Kernel, problem: Problem, operands: Operands, out: Any) -> Any:
    """Returns a kernel's output; raises KernelError where its shapes or dtypes aren't those of the problem's result."""
    # Left alone, another dtype would go on through the model, and another shape be blamed on whatever meets it first.
    found, expected = ([_form(x) for x in jax.tree.leaves(tree)] for tree in (out, problem.result(operands)))
    if found != expected:
        message = (
            f"{kernel.name} returned {', '.join(found)} for {problem.describe()}; expected {', '.join(expected)}. Its "
            f'author has to mend it; until then choose another with --set \'execution.kernels={{"{kernel.operation}": '
            f'"NAME"}}\' (`kanawa list kernels` names them){named_after(type(kernel))}'
        )
        raise KernelError(message)
    return out


def _form(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}"


def _scope(kernel: Kernel, problem: Problem) -> AbstractContextManager[None]:
    """Names the instructions after the call: a custom_vjp's halves are traced where no caller's scope reaches."""
    return jax.named_scope(scope_name(kernel.name, problem.describe()))


# Kernel and problem are static and hashable: closed over, each call would make a new custom_vjp, and no trace would be
# found again in JAX's caches.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _call(kernel: Kernel, problem: Problem, trains: bool, operands: dict[str, Any]) -> Any:
    if trains:
        # JAX traces this function and then `_forward`, and keeps the second where it differentiates: the same trace.
        return _computed(kernel, problem, operands)[0]
    return applied(kernel, problem, operands)


def _computed(kernel: Kernel, problem: Problem, operands: dict[str, Any]) -> tuple[Any, Any]:
    """Returns (out, residuals)."""
    # Op by op there is no trace to keep, and compiling each problem of its own would take far longer.
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(operands)):
        return _forward_of(kernel, problem, operands)
    # JAX keeps traces by the mesh in force, and to it no mesh (of the first trace) isn't an empty one (of the second).
    with jax.sharding.use_abstract_mesh(jax.sharding.get_abstract_mesh()):
        result: tuple[Any, Any] = _traced_once(kernel, problem, operands)
        return result


def _forward_of(kernel: Kernel, problem: Problem, operands: dict[str, Any]) -> tuple[Any, Any]:
    with _scope(kernel, problem):
        out, residuals = kernel.forward(problem, operands)
        return check_result(kernel, problem, operands, out), residuals


# Inlined: the program is the same as without, and only tracing is spared.
_traced_once = jax.jit(_forward_of, static_argnums=(0, 1), inline=True)


def _forward(kernel: Kernel, problem: Problem, trains: bool, operands: dict[str, Any]) -> tuple[Any, Any]:
    del trains
    out, residuals = _computed(kernel, problem, operands)
    # Named, so that a remat policy can save them: recomputing a fused kernel costs a whole forward.
    out = jax.tree.map(lambda x: checkpoint_name(x, f"{kernel.operation}_out"), out)
    residuals = jax.tree.map(lambda x: checkpoint_name(x, f"{kernel.operation}_residuals"), residuals)
    return out, (operands, out, residuals)


def _backward(kernel: Kernel, problem: Problem, trains: bool, saved: Any, cotangents: Any) -> tuple[dict[str, Any]]:
    del trains
    operands, out, residuals = saved
    with _scope(kernel, problem):
        gradients = kernel.backward(problem, operands, out, residuals, cotangents)
    unknown = sorted(set(gradients) - set(operands))
    if unknown:
        message = f"{kernel.name} gave cotangents of {unknown}, which are not operands"
        raise KernelError(message)
    for name, gradient in gradients.items():
        if gradient is not None and gradient.shape != operands[name].shape:
            message = (
                f"the backward of {kernel.name} returned {_form(gradient)} as the cotangent of {name}, which is "
                f"{_form(operands[name])}, for {problem.describe()}"
            )
            raise KernelError(message)
    return ({name: _cotangent(x, gradients.get(name)) for name, x in operands.items()},)


_call.defvjp(_forward, _backward)


def _cotangent(operand: Any, cotangent: Any) -> Any:
    """Returns the cotangent in the operand's dtype: zeros if missing, float0 for integers."""
    if not jnp.issubdtype(operand.dtype, jnp.inexact):
        # What JAX takes for the cotangent of integers and booleans, whose tangent space is empty.
        return np.zeros(operand.shape, jax.dtypes.float0)
    if cotangent is None:
        return jnp.zeros_like(operand)
    return cotangent.astype(operand.dtype)
