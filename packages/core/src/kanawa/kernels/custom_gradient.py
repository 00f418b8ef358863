"""The one custom_vjp: a kernel's own forward and backward in place of JAX's."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from kanawa.kernels.operation import Kernel, Operands


def call(kernel: Kernel, problem: Any, operands: Operands) -> Any:
    """Returns the kernel's output, differentiable in every floating-point operand."""
    if kernel.autodiff:
        return kernel.apply(problem, operands)
    return _call(kernel, problem, dict(operands))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _call(kernel: Kernel, problem: Any, operands: dict[str, Any]) -> Any:
    return kernel.apply(problem, operands)


def _forward(kernel: Kernel, problem: Any, operands: dict[str, Any]) -> tuple[Any, Any]:
    out, residuals = kernel.forward(problem, operands)
    # Named, so that a remat policy can save them: recomputing a fused kernel costs a whole forward.
    out = jax.tree.map(lambda x: checkpoint_name(x, f"{kernel.operation}_out"), out)
    residuals = jax.tree.map(lambda x: checkpoint_name(x, f"{kernel.operation}_residuals"), residuals)
    return out, (operands, out, residuals)


def _backward(kernel: Kernel, problem: Any, saved: Any, cotangents: Any) -> tuple[dict[str, Any]]:
    operands, out, residuals = saved
    found = kernel.backward(problem, operands, out, residuals, cotangents)
    unknown = sorted(set(found) - set(operands))
    if unknown:
        message = f"{kernel.name} gave cotangents of {unknown}, which are not operands"
        raise KeyError(message)
    result = {name: _cotangent(x, found.get(name)) for name, x in operands.items()}
    return (result,)


_call.defvjp(_forward, _backward)


def _cotangent(operand: Any, found: Any) -> Any:
    """Returns the cotangent in the operand's dtype: zeros if missing, float0 for integers."""
    if not jnp.issubdtype(operand.dtype, jnp.inexact):
        return np.zeros(operand.shape, jax.dtypes.float0)
    if found is None:
        return jnp.zeros_like(operand)
    return found.astype(operand.dtype)
