"""One vector for a whole sequence: BERT's pooler."""

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float

from kanawa_layers.basic.linear import Linear, add_linear


class FirstTokenPooler(kn.Module):
    """tanh(dense(first token)) (Devlin et al. 2018, arXiv:1810.04805, section 3.1)."""

    dense: Linear

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        dense: Linear.Config = Linear.Config(bias=True)
        foreign: kn.foreign.Names = kn.foreign.Names(children={"dense": "dense"})

    def setup(self) -> None:
        """Declares the projection."""
        dim = self.config.input_dim
        add_linear(self, "dense", dim, dim, ("embed", None))

    def forward(self, x: Float[Array, "B T E"]) -> Float[Array, "B E"]:
        """Returns the pooled vector of each row."""
        return jnp.tanh(self.dense(x[:, 0]))
