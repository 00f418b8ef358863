"""`activation`: every feed-forward and every expert gets another activation."""

from collections.abc import Callable

import jax
import kanawa as kn
from kanawa.contracts import FeedForward
from kanawa.errors import UnknownNameError, did_you_mean

from kanawa_layers.feedforward import activations
from kanawa_layers.modifiers.node_fields import set_fields
from kanawa_layers.moe.experts import Experts

#: What the modifier takes by name; a config takes any function.
ACTIVATIONS: dict[str, Callable] = {
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "gelu_tanh": activations.gelu_tanh,
    "gelu_exact": activations.gelu_exact,
    "quick_gelu": activations.quick_gelu,
    "squared_relu": activations.squared_relu,
    "linear": activations.linear,
}


class Activation(kn.Modifier):
    """Sets the activation `name`; of a gated feed-forward it acts on the gate. Raises UnknownNameError for others."""

    class Config(kn.Modifier.Config):
        name: str = kn.REQUIRED
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the activation set."""
        name = self.config.name
        if name not in ACTIVATIONS:
            message = f"activation: unknown name {name!r}{did_you_mean(name, ACTIVATIONS)}"
            raise UnknownNameError(message)
        return set_fields(cfg, (FeedForward, Experts), self.config.where, activation=ACTIVATIONS[name])
