"""Experts that are plain feed-forwards, as in Switch Transformer and GShard."""

from collections.abc import Callable

import jax
import kanawa as kn
from jaxtyping import Array, Float, Int

from kanawa_layers.moe.experts import Experts


class PlainExperts(Experts):
    """down(activation(up(x))) in each expert. Tag: feed_forward_up."""

    class Config(Experts.Config):
        activation: Callable[..., Array] = jax.nn.gelu
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={
                "up": kn.foreign.Tensor(name="{}.up_proj.weight", form=kn.foreign.Matrix.Config()),
                "down": kn.foreign.Tensor(name="{}.down_proj.weight", form=kn.foreign.Matrix.Config()),
                "up_bias": "{}.up_proj.bias",
                "down_bias": "{}.down_proj.bias",
            }
        )

    def setup(self) -> None:
        """Declares up and down of all experts."""
        super().setup()
        self.add_projection("up", up=True)
        self.add_projection("down", up=False)

    def forward(self, rows: Float[Array, "R E"], group_sizes: Int[Array, " X"]) -> Float[Array, "R E"]:
        """Returns each row through its expert."""
        up = self.tag("feed_forward_up", self.project(rows, "up", group_sizes))
        return self.project(self.config.activation(up), "down", group_sizes)

    @kn.nowrap
    def flops_per_row(self) -> float:
        """Returns two FLOPs for each weight of an expert's two matrices."""
        return float(4.0 * self.config.input_dim * self.config.hidden_dim)
