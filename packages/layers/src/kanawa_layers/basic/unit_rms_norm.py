"""RMSNorm without a scale: every vector gets root mean square 1, as Llama 4 does to queries and keys."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from kanawa.config import Epsilon
from kanawa.contracts import Norm


class UnitRMSNorm(Norm):
    """x / rms(x) over the last axis, in fp32; result in x's dtype. No parameters."""

    class Config(Norm.Config):
        eps: Epsilon = 1e-6

    def forward(self, x: Float[Array, "... E"]) -> Float[Array, "... E"]:
        """Returns the normalised array."""
        x32 = x.astype(jnp.float32)
        mean_square = jnp.mean(x32 * x32, axis=-1, keepdims=True)
        return (x32 * jax.lax.rsqrt(mean_square + self.config.eps)).astype(x.dtype)
