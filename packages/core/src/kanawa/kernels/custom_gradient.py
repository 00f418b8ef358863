"""The one custom_vjp: a kernel's own forward and backward in place of JAX's."""

import functools
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from kanawa.kernels.choice import scope_name
from kanawa.kernels.operation import Kernel, Operands


def call(kernel: Kernel, problem: Any, operands: Operands) -> Any:
    """Returns the kernel's output, differentiable in every floating-point operand."""
    if kernel.autodiff:
        with _scope(kernel, problem):
            return kernel.apply(problem, operands)
    return _call(kernel, problem, dict(operands))


def _scope(kernel: Kernel, problem: Any) -> AbstractContextManager[None]:
    """Names the instructions after the call: a custom_vjp's halves are traced where no caller's scope reaches."""
    return jax.named_scope(scope_name(kernel.name, problem.describe()))


# Kernel and problem are static and hashable: closed over, each call would make a new custom_vjp, and no trace would be
# found again in JAX's caches.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _call(kernel: Kernel, problem: Any, operands: dict[str, Any]) -> Any:
    with _scope(kernel, problem):
        return kernel.apply(problem, operands)


def _forward(kernel: Kernel, problem: Any, operands: dict[str, Any]) -> tuple[Any, Any]:
    with _scope(kernel, problem):
        out, residuals = kernel.forward(problem, operands)
    # Named, so that a remat policy can save them: recomputing a fused kernel costs a whole forward.
    out = jax.tree.map(lambda x: checkpoint_name(x, f"{kernel.operation}_out"), out)
    residuals = jax.tree.map(lambda x: checkpoint_name(x, f"{kernel.operation}_residuals"), residuals)
    return out, (operands, out, residuals)


def _backward(kernel: Kernel, problem: Any, saved: Any, cotangents: Any) -> tuple[dict[str, Any]]:
    operands, out, residuals = saved
    with _scope(kernel, problem):
        gradients = kernel.backward(problem, operands, out, residuals, cotangents)
    unknown = sorted(set(gradients) - set(operands))
    if unknown:
        message = f"{kernel.name} gave cotangents of {unknown}, which are not operands"
        raise KeyError(message)
    result = {name: _cotangent(x, gradients.get(name)) for name, x in operands.items()}
    return (result,)


_call.defvjp(_forward, _backward)


def _cotangent(operand: Any, given: Any) -> Any:
    """Returns the cotangent in the operand's dtype: zeros if missing, float0 for integers."""
    if not jnp.issubdtype(operand.dtype, jnp.inexact):
        # What JAX takes for the cotangent of integers and booleans, whose tangent space is empty.
        return np.zeros(operand.shape, jax.dtypes.float0)
    if given is None:
        return jnp.zeros_like(operand)
    return given.astype(operand.dtype)
