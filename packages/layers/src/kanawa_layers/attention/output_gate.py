"""Gates on what attention returns (Qiu et al. 2025, arXiv:2505.06708): sigmoid of a projection of the layer's input."""

import abc
from typing import ClassVar

import jax
import kanawa as kn
from jaxtyping import Array, Float

from kanawa_layers.basic.linear import Linear


class OutputGate(kn.Module):
    """Multiplies heads' outputs, before the output projection, by gates in (0, 1)."""

    projection: Linear

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        num_heads: kn.Size = kn.FROM_PARENT
        head_dim: kn.Size = kn.FROM_PARENT
        projection: Linear.Config = Linear.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(children={"projection": "gate_proj"})

    #: Whether each element of a head has a gate, or the head as a whole.
    each_element: ClassVar[bool]

    def setup(self) -> None:
        """Declares the projection, [embed, heads, head_dim] or [embed, heads]."""
        cfg = self.config
        # Shaped like heads, not flat, so that a gate is sharded with the head it multiplies.
        gates = ((cfg.num_heads, "heads"), (cfg.head_dim, "head_dim"))[: 2 if self.each_element else 1]
        self.add_child(
            "projection",
            cfg.projection,
            input_shape=(cfg.input_dim,),
            output_shape=tuple(size for size, _ in gates),
            axes=("embed", *(axis for _, axis in gates)),
        )

    @abc.abstractmethod
    def forward(self, out: Float[Array, "B T H D"], x: Float[Array, "B T E"]) -> Float[Array, "B T H D"]:
        """Returns gated outputs; `x` is the attention layer's input."""


class ElementwiseGate(OutputGate):
    """A gate for each element of each head."""

    each_element = True

    def forward(self, out: Float[Array, "B T H D"], x: Float[Array, "B T E"]) -> Float[Array, "B T H D"]:
        """Returns out * sigmoid(projection(x))."""
        return out * jax.nn.sigmoid(self.projection(x))


class HeadGate(OutputGate):
    """One gate for each head."""

    each_element = False

    def forward(self, out: Float[Array, "B T H D"], x: Float[Array, "B T E"]) -> Float[Array, "B T H D"]:
        """Returns out * sigmoid(projection(x)), the same for a whole head."""
        return out * jax.nn.sigmoid(self.projection(x))[..., None]
