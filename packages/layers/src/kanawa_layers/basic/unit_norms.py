"""Norms without parameters: every vector gets length 1 (L2Norm), or root mean square 1 (UnitRMSNorm)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from kanawa.config import Epsilon
from kanawa.contracts import Norm


class L2Norm(Norm):
    """x / |x| over the last axis, in fp32; result in x's dtype. A zero vector stays zero."""

    class Config(Norm.Config):
        eps: Epsilon = 1e-12

    def forward(self, x: Float[Array, "... E"]) -> Float[Array, "... E"]:
        """Returns the normalised array."""
        x32 = x.astype(jnp.float32)
        # eps is under the root, so that the gradient at a zero vector is finite; PyTorch's normalize bounds |x|
        # instead.
        squared = jnp.sum(x32 * x32, axis=-1, keepdims=True)
        return (x32 * jax.lax.rsqrt(squared + self.config.eps)).astype(x.dtype)


class UnitRMSNorm(Norm):
    """x / rms(x) over the last axis, in fp32; result in x's dtype, as Llama 4 does to queries and keys."""

    class Config(Norm.Config):
        eps: Epsilon = 1e-6

    def forward(self, x: Float[Array, "... E"]) -> Float[Array, "... E"]:
        """Returns the normalised array."""
        x32 = x.astype(jnp.float32)
        mean_square = jnp.mean(x32 * x32, axis=-1, keepdims=True)
        return (x32 * jax.lax.rsqrt(mean_square + self.config.eps)).astype(x.dtype)
