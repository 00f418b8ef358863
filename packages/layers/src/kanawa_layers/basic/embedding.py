"""Embeddings of tokens and of their types."""

import math

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int


class Embedding(kn.Module):
    """Looks up one row of a [vocab, embed] table for each token id; other layers may share the table.

    Rows are multiplied by `scale`, and by sqrt(output_dim) where `scale_by_sqrt_dim`, in the compute dtype, so that
    bfloat16 rounds the factor first, as Gemma's reference does. A tied head sees the table unscaled.
    """

    class Config(kn.Module.Config):
        vocab_size: kn.Size = kn.FROM_PARENT
        output_dim: kn.Size = kn.FROM_PARENT
        init_stddev: kn.NonNegative = 0.02
        scale: kn.Finite = 1.0
        scale_by_sqrt_dim: bool = False
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"weight": "weight"})

    def setup(self) -> None:
        """Declares the table, drawn from a normal of `init_stddev`."""
        cfg = self.config
        self.add_param(
            "weight",
            (cfg.vocab_size, cfg.output_dim),
            axes=("vocab", "embed"),
            init=kn.normal(cfg.init_stddev),
            fan_in_axes=(1,),
            fan_out_axes=(0,),
        )

    def forward(self, input_ids: Int[Array, "B T"]) -> Float[Array, "B T E"]:
        """Returns the scaled rows of the table in the compute dtype."""
        cfg = self.config
        # An id past the table becomes NaN (jnp.take fills), which is noticed; clipped, it would train the wrong row.
        plan = kn.current_plan()
        # Training gathers from the table that its head reads too. Serving reads few rows: they are cast, not the table.
        table = self.param("weight", None if plan.purpose == "train" else self.param_specs["weight"].dtype)
        x = jnp.take(table, input_ids, axis=0).astype(plan.precision.compute)
        factor = cfg.scale * (math.sqrt(cfg.output_dim) if cfg.scale_by_sqrt_dim else 1.0)
        # sqrt(3072) = 55.43 is 55.5 in bfloat16, and Gemma was trained with that.
        return x if factor == 1.0 else x * jnp.asarray(factor, x.dtype)

    def table(self) -> Float[Array, "V E"]:
        """Returns the whole table, for a head that is tied to it."""
        return self.param("weight")


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
