"""Experts that are gated feed-forwards (SwiGLU and similar), as in Mixtral, DeepSeek, Qwen and gpt-oss."""

from collections.abc import Callable

import jax
import kanawa as kn
from jaxtyping import Array, Float, Int

from kanawa_layers.feedforward.gating import Gating, Product
from kanawa_layers.moe.experts import Experts


class GatedExperts(Experts):
    """down(gating(activation, gate(x), up(x))) in each expert. Tags: feed_forward_gate, feed_forward_up."""

    class Config(Experts.Config):
        activation: Callable[..., Array] = jax.nn.silu
        gating: Gating.Config = Product.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={
                "gate": kn.foreign.Tensor(name="{}.gate_proj.weight", form=kn.foreign.Matrix.Config()),
                "up": kn.foreign.Tensor(name="{}.up_proj.weight", form=kn.foreign.Matrix.Config()),
                "down": kn.foreign.Tensor(name="{}.down_proj.weight", form=kn.foreign.Matrix.Config()),
                "gate_bias": "{}.gate_proj.bias",
                "up_bias": "{}.up_proj.bias",
                "down_bias": "{}.down_proj.bias",
            }
        )

    def setup(self) -> None:
        """Declares gate, up and down of all experts."""
        super().setup()
        self.add_projection("gate", up=True)
        self.add_projection("up", up=True)
        self.add_projection("down", up=False)
        self._gating = self.config.gating.build()

    def forward(self, rows: Float[Array, "R E"], group_sizes: Int[Array, " X"]) -> Float[Array, "R E"]:
        """Returns each row through its expert."""
        gate = self.tag("feed_forward_gate", self.project(rows, "gate", group_sizes))
        up = self.tag("feed_forward_up", self.project(rows, "up", group_sizes))
        return self.project(self._gating.combine(self.config.activation, gate, up), "down", group_sizes)

    @kn.nowrap
    def flops_per_row(self) -> float:
        """Returns two FLOPs for each weight of an expert's three matrices."""
        return float(6.0 * self.config.input_dim * self.config.hidden_dim)
