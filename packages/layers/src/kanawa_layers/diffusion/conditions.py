"""What a diffusion model knows beside the noised picture, as one vector a row: the time, and a label."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int

from kanawa_layers.basic.linear import Linear, add_linear


class TimeEmbedding(kn.Module):
    """down(activation(up(waves))) of cosines and sines of the time (DiT, Peebles and Xie 2022, arXiv:2212.09748).

    `num_waves` / 2 frequencies fall from 1 to 1 / `longest`; with `reaches_longest` the last is exactly that.
    """

    up: Linear
    down: Linear

    class Config(kn.Module.Config):
        output_dim: kn.Size = kn.FROM_PARENT
        num_waves: kn.Size = 256
        longest: kn.Positive = 10_000.0
        reaches_longest: bool = False
        activation: Callable[..., Array] = jax.nn.silu
        up: Linear.Config = Linear.Config(bias=True)
        down: Linear.Config = Linear.Config(bias=True)
        foreign: kn.foreign.Names = kn.foreign.Names(children={"up": "linear_1", "down": "linear_2"})

        def check(self) -> list[str]:
            """Returns that waves come in pairs."""
            if self.num_waves % 2 == 0 and self.num_waves >= 4:
                return []
            return [f"num_waves is {self.num_waves}, and waves come in pairs, two at least"]

    def setup(self) -> None:
        """Declares both projections."""
        cfg = self.config
        add_linear(self, "up", cfg.num_waves, cfg.output_dim, (None, "embed"))
        add_linear(self, "down", cfg.output_dim, cfg.output_dim, ("embed", None))

    def forward(self, times: Float[Array, " B"]) -> Float[Array, "B E"]:
        """Returns the vectors in the compute dtype; times count from 0 to 1000 or so, and may be fractions."""
        cfg = self.config
        pairs = cfg.num_waves // 2
        exponents = jnp.arange(pairs, dtype=jnp.float32) / (pairs - int(cfg.reaches_longest))
        # In fp32: bfloat16 can't tell time 999 from 1000.
        angles = times.astype(jnp.float32)[:, None] * jnp.exp(-math.log(cfg.longest) * exponents)[None]
        waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
        return self.down(cfg.activation(self.up(waves.astype(kn.current_plan().precision.compute))))


class LabelEmbedding(kn.Module):
    """A learned vector for each of `num_labels` labels, and one, the last, for no label."""

    class Config(kn.Module.Config):
        num_labels: kn.Size = kn.FROM_PARENT
        output_dim: kn.Size = kn.FROM_PARENT
        init_stddev: kn.NonNegative = 0.02
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"weight": "embedding_table.weight"})

    def setup(self) -> None:
        """Declares the table, [labels + 1, embed]."""
        cfg = self.config
        self.add_param(
            "weight",
            (cfg.num_labels + 1, cfg.output_dim),
            axes=(None, "embed"),
            init=kn.normal(cfg.init_stddev),
            fan_in_axes=(1,),
            fan_out_axes=(0,),
        )

    def forward(self, labels: Int[Array, " B"]) -> Float[Array, "B E"]:
        """Returns the vectors in the compute dtype; NaN for a label that there isn't."""
        return jnp.take(self.param("weight"), labels, axis=0)
