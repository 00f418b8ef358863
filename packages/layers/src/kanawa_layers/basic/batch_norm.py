"""BatchNorm (Ioffe and Szegedy 2015, arXiv:1502.03167), with running statistics as state."""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Bool, Float
from kanawa.arrays.broadcast import along_last
from kanawa.contracts import Norm


class BatchNorm(Norm):
    """(x - mean) / std * scale + bias of each channel; fp32 inside, result in x's dtype.

    In training, mean and variance are the batch's, over every device that shares it, and the running ones move to
    them by 1 - `decay`; otherwise the running ones are used. With accumulated gradients, each microbatch has its own.
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
