"""GroupNorm (Wu and He 2018, arXiv:1803.08494): statistics of groups of channels over all positions of a row."""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Bool, Float
from kanawa.arrays.broadcast import along_last
from kanawa.contracts import Norm


class GroupNorm(Norm):
    """(x - mean) / std * scale + bias, mean and std of each row's `num_groups` equal groups of channels; fp32 inside.

    One group is LayerNorm over positions and channels; input_dim groups are InstanceNorm. A causal model needs
    statistics a position of its own: use LayerNorm or RMSNorm there.
    """

    class Config(Norm.Config):
        num_groups: kn.Size = 32
        eps: kn.Epsilon = 1e-5
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"scale": "weight", "bias": "bias"})

        def check(self) -> list[str]:
            """Returns what is wrong with the groups."""
            if not isinstance(self.input_dim, int) or self.input_dim % self.num_groups == 0:
                return []
            return [f"input_dim ({self.input_dim}) is not a multiple of num_groups ({self.num_groups})"]

    def setup(self) -> None:
        """Declares `scale`, ones, and `bias`, zeros; neither decays."""
        shape = (self.config.input_dim,)
        self.add_param("scale", shape, axes=("norm",), init=kn.ones, weight_decay=0.0)
        self.add_param("bias", shape, axes=("norm",), init=kn.zeros, weight_decay=0.0)

    def forward(
        self, x: Float[Array, "B *axes E"], valid: Bool[Array, " B *axes"] | None = None
    ) -> Float[Array, "B *axes E"]:
        """Returns the normalised array; positions that aren't `valid` don't count in the statistics."""
        groups = self.config.num_groups
        # [B, *axes, E] -> [B, positions, groups, E / groups]
        rows = x.astype(jnp.float32).reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
        weight = jnp.ones((*rows.shape[:2], 1, 1)) if valid is None else valid.reshape(*rows.shape[:2], 1, 1)
        weight = weight.astype(jnp.float32)
        count = jnp.maximum(jnp.sum(weight, axis=1, keepdims=True), 1.0) * rows.shape[3]
        mean = jnp.sum(rows * weight, axis=(1, 3), keepdims=True) / count
        centred = rows - mean
        variance = jnp.sum(centred * centred * weight, axis=(1, 3), keepdims=True) / count
        y = (centred * jax.lax.rsqrt(variance + self.config.eps)).reshape(x.shape)
        scale, bias = self.param("scale", jnp.float32), self.param("bias", jnp.float32)
        return (y * along_last(scale, x.ndim) + along_last(bias, x.ndim)).astype(x.dtype)
