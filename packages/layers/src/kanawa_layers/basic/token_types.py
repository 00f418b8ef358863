"""A trained vector for each type of token, such as BERT's first and second sentence."""

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int


class TokenTypes(kn.Module):
    """Looks up one row of a small table for each token's type; a slot of encoders, added to the token embedding."""

    class Config(kn.Module.Config):
        output_dim: kn.Size = kn.FROM_PARENT
        num_types: kn.Size = 2
        init_stddev: kn.NonNegative = 0.02
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"weight": "weight"})

    def setup(self) -> None:
        """Declares the table, [types, embed]; it has too few rows to be split."""
        cfg = self.config
        shape = (cfg.num_types, cfg.output_dim)
        self.add_param("weight", shape, axes=(None, "embed"), init=kn.normal(cfg.init_stddev), fan_in_axes=(1,))

    def forward(self, types: Int[Array, "B T"]) -> Float[Array, "B T E"]:
        """Returns the rows in the compute dtype."""
        return jnp.take(self.param("weight"), types, axis=0)
