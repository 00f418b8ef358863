"""LayerNorm (Ba et al. 2016, arXiv:1607.06450)."""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.arrays.broadcast import along_last
from kanawa.contracts import Norm


class LayerNorm(Norm):
    """(x - mean) / std * scale + bias over the last axis; fp32 inside, result in x's dtype."""

    class Config(Norm.Config):
        eps: kn.Epsilon = 1e-5
        bias: bool = True
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"scale": "weight", "bias": "bias"})

    def setup(self) -> None:
        """Declares `scale`, ones, and `bias`, zeros; neither decays."""
        shape = (self.config.input_dim,)
        self.add_param("scale", shape, axes=("norm",), init=kn.ones, weight_decay=0.0)
        if self.config.bias:
            self.add_param("bias", shape, axes=("norm",), init=kn.zeros, weight_decay=0.0)

    def forward(self, x: Float[Array, "... E"]) -> Float[Array, "... E"]:
        """Returns the normalised array."""
        x32 = x.astype(jnp.float32)
        centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        # The variance of the centred values, not E[x^2] - E[x]^2, which cancels in fp32 where the mean is far from 0.
        variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
        y = centred * jax.lax.rsqrt(variance + self.config.eps) * along_last(self.param("scale", jnp.float32), x.ndim)
        if self.config.bias:
            y = y + along_last(self.param("bias", jnp.float32), x.ndim)
        return y.astype(x.dtype)
