"""Modulation: a condition shifts and scales what branches read, and gates what they add (DiT, arXiv:2212.09748)."""

import abc
from collections.abc import Callable
from typing import NamedTuple

import jax
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Sequences
from kanawa.errors import ModuleError

from kanawa_layers.basic.linear import Linear


class Modulation(NamedTuple):
    """What a condition does to one branch, each [B, 1, E]."""

    shift: jax.Array
    scale: jax.Array
    gate: jax.Array

    def read(self, normed: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        """Returns what the branch reads of a normalised stream."""
        return normed * (1.0 + self.scale) + self.shift

    def add(self, y: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        """Returns what joins the stream of the branch's output."""
        return y * self.gate


def condition_of(block: kn.Module, sequences: Sequences) -> jax.Array:
    """Returns the vectors [B, E] that a block is modulated by; raises ModuleError where there are none."""
    if sequences.condition is None:
        message = f"{block.path} is modulated by a condition, and Sequences.condition is None"
        raise ModuleError(message)
    return sequences.condition


class Modulations(kn.Module):
    """Makes `count` vectors of the stream's width from a condition; a slot of blocks and heads."""

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        count: kn.Size = kn.FROM_PARENT

    @abc.abstractmethod
    def forward(self, condition: Float[Array, "B E"]) -> list[Float[Array, "B 1 E"]]:
        """Returns the vectors."""


class AdaptiveZero(Modulations):
    """linear(activation(condition)), zero at first: blocks begin as the identity (adaLN-zero, section 3.2)."""

    linear: Linear

    class Config(Modulations.Config):
        activation: Callable[..., Array] = jax.nn.silu
        linear: Linear.Config = Linear.Config(bias=True, init_scale=0.0)
        foreign: kn.foreign.Names = kn.foreign.Names(children={"linear": "linear"})

    def setup(self) -> None:
        """Declares the projection, [embed, count, embed]."""
        cfg = self.config
        self.add_child(
            "linear",
            cfg.linear,
            input_shape=(cfg.input_dim,),
            output_shape=(cfg.count, cfg.input_dim),
            axes=("embed", None, None),
        )

    def forward(self, condition: Float[Array, "B E"]) -> list[Float[Array, "B 1 E"]]:
        """Returns the vectors."""
        y = self.linear(self.config.activation(condition))
        return [y[:, None, i] for i in range(self.config.count)]

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns a token's share of a row of `context_length` tokens, each of which sees all: once a row."""
        return self.linear.flops_per_token(1.0) / context_length
