"""RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467)."""

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Norm
from kanawa.kernels.rms_norm import rms_norm


class RMSNorm(Norm):
    """x / rms(x) * scale over the last axis; computed in fp32, result in x's dtype.

    `zero_centered` stores the scale as its distance from 1, drawn as zeros, as Gemma does: x / rms(x) * (1 + scale).
    """

    class Config(Norm.Config):
        eps: kn.Epsilon = 1e-6
        zero_centered: bool = False
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"scale": "weight"})

    def setup(self) -> None:
        """Declares `scale`, which has no effect at first and never decays."""
        cfg = self.config
        init = kn.zeros if cfg.zero_centered else kn.ones
        self.add_param("scale", (cfg.input_dim,), axes=("norm",), init=init, weight_decay=0.0)

    def forward(self, x: Float[Array, "... E"]) -> Float[Array, "... E"]:
        """Returns the normalised array."""
        scale = self.param("scale", jnp.float32)
        if self.config.zero_centered:
            # In fp32: bfloat16 would round 1.003 to 1, and so most of what was learned.
            scale = 1.0 + scale
        return rms_norm(x, scale, eps=self.config.eps)
