"""LoRA: a trained low-rank change of a frozen weight (Hu et al. 2021, arXiv:2106.09685)."""

import math
from collections.abc import Callable, Mapping

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Adapter
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
        alpha: kn.NonNegative = 16.0
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
