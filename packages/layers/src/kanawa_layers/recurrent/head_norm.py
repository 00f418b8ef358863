"""RMSNorm of each head with a scale of its own, so that two kinds of attention can be added up."""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float


class HeadNorm(kn.Module):
    """x / rms(x) * scale over the width of each head; fp32 inside, result in x's dtype."""

    class Config(kn.Module.Config):
        num_heads: kn.Size = kn.FROM_PARENT
        head_dim: kn.Size = kn.FROM_PARENT
        eps: kn.Epsilon = 1e-6
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"scale": "scale"})

    def setup(self) -> None:
        """Declares `scale`, [heads, head_dim], ones, never decayed."""
        shape = (self.config.num_heads, self.config.head_dim)
        self.add_param("scale", shape, axes=("heads", "head_dim"), init=kn.ones, weight_decay=0.0)

    def forward(self, x: Float[Array, "B T H D"]) -> Float[Array, "B T H D"]:
        """Returns the normalised heads."""
        x32 = x.astype(jnp.float32)
        y = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + self.config.eps)
        return (y * self.param("scale", jnp.float32)[None, None]).astype(x.dtype)
