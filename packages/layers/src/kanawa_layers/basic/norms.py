"""Norms: of each vector, with a scale or without, of groups of channels, and of a batch with running statistics."""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Bool, Float
from kanawa.arrays.broadcast import along_last
from kanawa.config import Epsilon
from kanawa.contracts import Norm
from kanawa.kernels.rms_norm import rms_norm


class RMSNorm(Norm):
    """x / rms(x) * scale over the last axis; computed in fp32, result in x's dtype (arXiv:1910.07467).

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


class LayerNorm(Norm):
    """(x - mean) / std * scale + bias over the last axis; fp32 inside, result in x's dtype (arXiv:1607.06450)."""

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


class UnitLayerNorm(Norm):
    """(x - mean) / std over the last axis, fp32 inside, result in x's dtype; for blocks that bring scale and shift."""

    class Config(Norm.Config):
        eps: kn.Epsilon = 1e-6

    def forward(self, x: Float[Array, "... E"]) -> Float[Array, "... E"]:
        """Returns the normalised array."""
        x32 = x.astype(jnp.float32)
        centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
        return (centred * jax.lax.rsqrt(variance + self.config.eps)).astype(x.dtype)


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


class GroupNorm(Norm):
    """(x - mean) / std * scale + bias, mean and std of each row's `num_groups` equal groups of channels; fp32 inside.

    Wu and He 2018, arXiv:1803.08494. One group is LayerNorm over positions and channels; input_dim groups are
    InstanceNorm. A causal model needs statistics a position of its own: use LayerNorm or RMSNorm there.
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


class BatchNorm(Norm):
    """(x - mean) / std * scale + bias of each channel; fp32 inside, result in x's dtype.

    Ioffe and Szegedy 2015, arXiv:1502.03167. In training, mean and variance are the batch's, over every device that
    shares it, and the running ones move to them by 1 - `decay`; otherwise the running ones are used. With accumulated
    gradients, each microbatch has its own.
    """

    class Config(Norm.Config):
        eps: kn.Epsilon = 1e-5
        # PyTorch's momentum of 0.1, the weight of the new value.
        decay: kn.Partial = 0.9
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"scale": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}
        )

    def setup(self) -> None:
        """Declares `scale` and `bias`, never decayed, and the running `mean` and `variance`."""
        shape = (self.config.input_dim,)
        self.add_param("scale", shape, axes=("norm",), init=kn.ones, weight_decay=0.0)
        self.add_param("bias", shape, axes=("norm",), init=kn.zeros, weight_decay=0.0)
        self.add_state("mean", shape, axes=("norm",))
        self.add_state("variance", shape, axes=("norm",), init=kn.ones)

    def forward(
        self, x: Float[Array, "B *axes E"], valid: Bool[Array, " B *axes"] | None = None
    ) -> Float[Array, "B *axes E"]:
        """Returns the normalised array; positions that aren't `valid` don't count in the statistics."""
        x32 = x.astype(jnp.float32)
        mean, variance = self._measured(x32, valid) if self.train else (self.state("mean"), self.state("variance"))
        scale = self.param("scale", jnp.float32) * jax.lax.rsqrt(variance + self.config.eps)
        shifted = (x32 - along_last(mean, x.ndim)) * along_last(scale, x.ndim)
        return (shifted + along_last(self.param("bias", jnp.float32), x.ndim)).astype(x.dtype)

    def _measured(
        self, x: Float[Array, "B *axes E"], valid: Bool[Array, " B *axes"] | None
    ) -> tuple[Float[Array, " E"], Float[Array, " E"]]:
        """Returns the batch's mean and variance, and moves the running ones, whose variance is the unbiased one."""
        rows = x.reshape(-1, x.shape[-1])
        weight = jnp.ones((rows.shape[0], 1)) if valid is None else valid.reshape(-1, 1).astype(jnp.float32)
        count = jnp.maximum(jnp.sum(weight), 1.0)
        mean = jnp.sum(rows * weight, axis=0) / count
        centred = rows - mean[None]
        variance = jnp.sum(centred * centred * weight, axis=0) / count
        # Normalises by the biased variance and stores the unbiased one, as PyTorch does, so checkpoints agree.
        unbiased = variance * count / jnp.maximum(count - 1.0, 1.0)
        decay = self.config.decay
        # No gradient flows through running statistics.
        self.update("mean", decay * self.state("mean") + (1.0 - decay) * jax.lax.stop_gradient(mean))
        self.update("variance", decay * self.state("variance") + (1.0 - decay) * jax.lax.stop_gradient(unbiased))
        return mean, variance
