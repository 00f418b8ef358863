"""`activation`, `feed-forward-bias` and `fused-gate-up`: how feed-forwards and experts are made."""

from collections.abc import Callable
from typing import Any

import kanawa as kn
from kanawa.contracts import FeedForward
from kanawa.errors import UsageError

from kanawa_layers.basic.linear import Linear
from kanawa_layers.feedforward.gated import FusedGatedFeedForward, GatedFeedForward
from kanawa_layers.modifiers.fields import set_fields
from kanawa_layers.moe.experts import Experts

#: The catalog's kind: entry points of the group `kanawa.activations` name functions of one array.
KIND = "activations"


class Activation(kn.Modifier):
    """`activation`: sets the one catalogued as `name`, such as squared-relu; in a gated feed-forward, the gate's.

    The config then holds the function itself, so that its text doesn't depend on what is installed.
    """

    class Config(kn.Modifier.Config):
        name: str = kn.REQUIRED
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the activation set; raises UnknownNameError for an unknown name."""
        function = named_activation(self.config.name)
        return set_fields(cfg, (FeedForward, Experts), self.config.where, activation=function)


def named_activation(name: str) -> Callable[..., Any]:
    """Returns the catalogued function; raises UnknownNameError with near names, UsageError where it is a class."""
    function: Callable[..., Any] = kn.component(KIND, name)
    if isinstance(function, type):
        message = f"activation: {name!r} is the class {function!r}; expected a function from one array to another"
        raise UsageError(message)
    return function


class FeedForwardBias(kn.Modifier):
    """`feed-forward-bias`: every projection of a feed-forward, experts included, gets a bias, or loses it."""

    class Config(kn.Modifier.Config):
        bias: bool = True
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the biases."""
        bias = self.config.bias

        def edit(node: Any) -> None:
            if isinstance(node, Experts.Config):
                node.set(bias=bias)
                return
            for name in node.fields():
                # The gate of a shared feed-forward isn't one of its projections.
                if isinstance(getattr(node, name), Linear.Config) and name != "shared_gate":
                    getattr(node, name).set(bias=bias)

        kn.replace(cfg, target=(FeedForward, Experts), edit=edit, where=self.config.where)
        return cfg


class FusedGateUp(kn.Modifier):
    """`fused-gate-up`: gate and up of every gated feed-forward become one matmul."""

    class Config(kn.Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the fused kind."""

        def edit(node: GatedFeedForward.Config) -> kn.Config:
            # The fused weight has the gate's initialisation, form and adapter; those of `up` are dropped.
            fields = {name: getattr(node, name) for name in ("input_dim", "hidden_dim", "activation", "gating", "down")}
            return FusedGatedFeedForward.Config(gate_up=node.gate, **fields)

        kn.replace(cfg, target=GatedFeedForward, edit=edit, where=self.config.where)
        return cfg
