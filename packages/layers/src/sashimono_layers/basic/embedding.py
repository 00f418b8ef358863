"""Token embedding."""

import jax.numpy as jnp
import sashimono as sm
from jaxtyping import Array, Float, Int


class Embedding(sm.Module):
    """Looks up one row of a [vocab, embed] table for each token id; other layers may share the table."""

    class Config(sm.Module.Config):
        vocab_size: int = sm.FROM_PARENT
        output_dim: int = sm.FROM_PARENT
        init_stddev: float = 0.02
        scale_by_sqrt_dim: bool = False

    def setup(self) -> None:
        """Declares the table, drawn from a normal of `init_stddev`."""
        cfg = self.config
        self.add_param(
            "weight",
            (cfg.vocab_size, cfg.output_dim),
            axes=("vocab", "embed"),
            init=sm.normal(cfg.init_stddev),
            fan_in_axes=(1,),
            fan_out_axes=(0,),
        )

    def forward(self, input_ids: Int[Array, "B T"]) -> Float[Array, "B T E"]:
        """Returns the rows of the table in the compute dtype, times sqrt(output_dim) where configured."""
        x = jnp.take(self.param("weight"), input_ids, axis=0)
        return x * (self.config.output_dim**0.5) if self.config.scale_by_sqrt_dim else x

    def table(self) -> Float[Array, "V E"]:
        """Returns the whole table, for a head that is tied to it."""
        return self.param("weight")
