"""DoRA: a low-rank change of the direction of the weight's columns, and a trained magnitude (Liu et al. 2024).

arXiv:2402.09353, equation 5, and section 4.3: the norm is a constant in the gradient.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.arrays.broadcast import along_last
from kanawa.contracts import Adapter
from kanawa.kernels.matmul import matmul

from kanawa_layers.tune.lora import FOREIGN, declare_low_rank, low_rank_change, low_rank_flops


class DoRA(Adapter):
    """magnitude * |W| * (W + change) / |W + change|, norms taken over each output column. Tag: adapter_hidden.

    `magnitude` is relative to the frozen weight's own column norms: it starts at one whatever weight is loaded, where
    the paper's absolute one has to be measured first. With a frozen weight, the two differ by a constant factor.
    """

    class Config(Adapter.Config):
        rank: kn.Size = 8
        alpha: kn.NonNegative = 16.0
        foreign: kn.foreign.Names = FOREIGN

    def setup(self) -> None:
        """Declares `lora_a` [*inputs, rank], `lora_b` [rank, *outputs], zero, and `magnitude` [*outputs], ones."""
        cfg = self.config
        declare_low_rank(self, cfg.rank)
        axes = cfg.axes[len(cfg.input_shape) :]
        self.add_param("magnitude", cfg.output_shape, axes=axes, init=kn.ones, weight_decay=0.0)
        self.scale: float = cfg.alpha / cfg.rank

    def forward(
        self, x: Float[Array, "..."], y: Float[Array, "..."], weight: Callable[[], Float[Array, "..."]]
    ) -> Float[Array, "..."]:
        """Returns the changed and rescaled output."""
        a, b = self.param("lora_a"), self.param("lora_b")
        factor = self._factor(self.param("magnitude", jnp.float32), a, b, weight())
        hidden = self.tag("adapter_hidden", matmul(x, a, len(self.config.input_shape)))
        changed = y + self.scale * matmul(hidden, b, 1)
        return changed * along_last(factor.astype(y.dtype), y.ndim)

    @kn.nowrap
    def merged(self, params: Mapping[str, Array], weight: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns the changed and rescaled weight."""
        a, b = params["lora_a"], params["lora_b"]
        factor = self._factor(params["magnitude"], a, b, weight)
        changed = weight + low_rank_change(a, b, self.scale).astype(weight.dtype)
        return changed * along_last(factor.astype(weight.dtype), weight.ndim)

    def _factor(
        self,
        magnitude: Float[Array, "..."],
        a: Float[Array, "..."],
        b: Float[Array, "..."],
        weight: Float[Array, "..."],
    ) -> Float[Array, "..."]:
        axes = tuple(range(len(self.config.input_shape)))
        weight = weight.astype(jnp.float32)

        def norms(w: Float[Array, "..."]) -> Float[Array, "..."]:
            return jnp.sqrt(jnp.sum(w * w, axis=axes))

        changed = norms(weight + low_rank_change(a, b, self.scale))
        # A column of zeros has no norm to divide by.
        ratio = jnp.where(changed > 0.0, norms(weight) / jnp.where(changed > 0.0, changed, 1.0), 1.0)
        return magnitude * jax.lax.stop_gradient(ratio)

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs for each element of the factors; the norms don't depend on tokens."""
        del context_length
        return low_rank_flops(self, self.config.rank)
