"""Low-rank changes of a frozen weight: LoRA (Hu et al. 2021, arXiv:2106.09685) and DoRA (arXiv:2402.09353)."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float
from kanawa.arrays.broadcast import along_last
from kanawa.contracts import Adapter
from kanawa.errors import ModuleError
from kanawa.kernels.matmul import matmul

from kanawa_layers.basic.dropout import Dropout

#: The peft library's names of the factors, next to the projection's own tensors.
FOREIGN = kn.foreign.Names(
    tensors={
        "lora_a": kn.foreign.Tensor(name="lora_A.weight", form=kn.foreign.Matrix.Config()),
        "lora_b": kn.foreign.Tensor(name="lora_B.weight", form=kn.foreign.Matrix.Config()),
        "magnitude": kn.foreign.Tensor(name="lora_magnitude_vector.weight", form=kn.foreign.Flat.Config()),
    }
)


class LoRA(Adapter):
    """y + alpha / rank * dropout(x) @ lora_a @ lora_b; lora_b starts at zero. Tag: adapter_hidden."""

    dropout: Dropout | None

    class Config(Adapter.Config):
        rank: kn.Size = 8
        alpha: kn.Strength = 16.0
        dropout: Dropout.Config | None = None
        foreign: kn.foreign.Names = FOREIGN

    def setup(self) -> None:
        """Declares `lora_a` [*inputs, rank] and `lora_b` [rank, *outputs]."""
        cfg = self.config
        declare_low_rank(self, cfg.rank)
        self.scale: float = cfg.alpha / cfg.rank
        self.add_child("dropout", cfg.dropout)

    def forward(
        self, x: Float[Array, "..."], y: Float[Array, "..."], weight: Callable[[], Float[Array, "..."]]
    ) -> Float[Array, "..."]:
        """Returns y with the change added."""
        del weight
        # Only on the adapter's input: the frozen matmul has no dropout.
        dropped = x if self.dropout is None else self.dropout(x)
        hidden = self.tag("adapter_hidden", matmul(dropped, self.param("lora_a"), len(self.config.input_shape)))
        return y + self.scale * matmul(hidden, self.param("lora_b"), 1)

    @kn.nowrap
    def merged(self, params: Mapping[str, Array], weight: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns weight + alpha / rank * lora_a @ lora_b."""
        return weight + self.scale * matmul(params["lora_a"], params["lora_b"], 1)

    @kn.nowrap
    def factors(self, params: Mapping[str, Array]) -> tuple[Array, Array]:
        """Returns lora_a and alpha / rank * lora_b."""
        return params["lora_a"], self.scale * params["lora_b"]

    @kn.nowrap
    def with_factors(self, params: Mapping[str, Array], a: Any, b: Any) -> dict[str, Any]:
        """Returns them with what is left of the rank as it was in lora_a, and zero in lora_b: it learns from there."""
        rank, stored = self.config.rank, a.shape[-1]
        if stored > rank:
            message = (
                f"{self.path} has rank {rank}, and the stored adapter rank {stored}; set --modify lora:rank={stored}"
            )
            raise ModuleError(message)
        rest = np.asarray(params["lora_a"])[..., stored:]
        axis = b.ndim - 1 - len(self.config.output_shape)
        widths = [(0, rank - stored if i == axis else 0) for i in range(b.ndim)]
        return {"lora_a": np.concatenate([a, rest], axis=-1), "lora_b": np.pad(np.asarray(b) / self.scale, widths)}

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs for each of its elements."""
        del context_length
        return low_rank_flops(self, self.config.rank)


def declare_low_rank(adapter: Adapter, rank: int) -> None:
    """Declares the two factors; the rank is too small to be worth splitting over a mesh."""
    cfg = adapter.config
    num_inputs = len(cfg.input_shape)
    adapter.add_param(
        "lora_a",
        (*cfg.input_shape, rank),
        axes=(*cfg.axes[:num_inputs], None),
        fan_in_axes=tuple(range(num_inputs)),
    )
    adapter.add_param(
        "lora_b",
        (rank, *cfg.output_shape),
        axes=(None, *cfg.axes[num_inputs:]),
        init=kn.zeros,
        fan_out_axes=tuple(range(1, 1 + len(cfg.output_shape))),
    )


def low_rank_flops(adapter: Adapter, rank: int) -> float:
    """Returns both factors' FLOPs for one token."""
    cfg = adapter.config
    return float(2.0 * rank * (math.prod(cfg.input_shape) + math.prod(cfg.output_shape)))


def low_rank_change(a: Float[Array, "..."], b: Float[Array, "..."], scale: float) -> Float[Array, "..."]:
    """Returns the dense change of the weight, fp32."""
    return scale * matmul(a.astype(jnp.float32), b.astype(jnp.float32), 1)


class DoRA(Adapter):
    """magnitude * |W| * (W + change) / |W + change|, norms taken over each output column. Tag: adapter_hidden.

    Liu et al. 2024, arXiv:2402.09353, equation 5; section 4.3: the norm is a constant in the gradient.

    `magnitude` is relative to the frozen weight's own column norms: it starts at one whatever weight is loaded, where
    the paper's absolute one has to be measured first. With a frozen weight, the two differ by a constant factor.
    """

    class Config(Adapter.Config):
        rank: kn.Size = 8
        alpha: kn.Strength = 16.0
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
