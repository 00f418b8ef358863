"""RMSNorm of gated activations, all channels at once or in groups (Mamba-2, arXiv:2405.21060, section 7)."""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.arrays.broadcast import along_last


class GatedNorm(kn.Module):
    """rms_norm(x * silu(gate)) * scale; fp32 inside. Each of `groups` equal parts has statistics of its own."""

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        eps: kn.Epsilon = 1e-5
        groups: kn.Size = kn.FROM_PARENT
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"scale": "weight"})

    def setup(self) -> None:
        """Declares `scale`, ones, never decayed."""
        self.add_param("scale", (self.config.input_dim,), axes=("norm",), init=kn.ones, weight_decay=0.0)

    def forward(self, x: Float[Array, "B T C"], gate: Float[Array, "B T C"]) -> Float[Array, "B T C"]:
        """Returns the normalised array in the gate's dtype."""
        # The gate comes first: the released Mamba-2 models have norm_before_gate=False.
        gated = x.astype(jnp.float32) * jax.nn.silu(gate.astype(jnp.float32))
        parts = gated.reshape(*gated.shape[:-1], self.config.groups, -1)
        parts = parts * jax.lax.rsqrt(jnp.mean(parts * parts, axis=-1, keepdims=True) + self.config.eps)
        return (parts.reshape(gated.shape) * along_last(self.param("scale", jnp.float32), x.ndim)).astype(gate.dtype)
