"""rms_norm.any.reference: RMSNorm in plain JAX (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from kanawa.arrays.broadcast import along_last
from kanawa.kernels.operation import Operands, UniversalKernel
from kanawa.kernels.rms_norm.problem import RMSNormProblem


class ReferenceRMSNorm(UniversalKernel):
    """Statistics and product in fp32, differentiated by JAX. Supports every problem."""

    name: ClassVar[str] = "rms_norm.any.reference"
    operation: ClassVar[str] = "rms_norm"
    autodiff: ClassVar[bool] = True

    def forward(self, problem: RMSNormProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (x / rms(x) * scale in x's dtype, None)."""
        x, scale = operands["x"], operands["scale"]
        # At least fp32, so that the reference can be asked in fp64.
        wide = x.dtype if x.dtype == jnp.float64 else jnp.dtype(jnp.float32)
        x32 = x.astype(wide)
        # x * x, not jnp.square: the latter keeps 2 x for the backward pass, an array more a norm.
        mean_square = jnp.mean(x32 * x32, axis=-1, keepdims=True)
        y = x32 * jax.lax.rsqrt(mean_square + problem.eps)
        # Llama's reference rounds to x's dtype before the scale, Gemma's after it. Before it loses bits for nothing,
        # and in fp32 both are the same.
        return (y * along_last(scale.astype(wide), x.ndim)).astype(x.dtype), None
