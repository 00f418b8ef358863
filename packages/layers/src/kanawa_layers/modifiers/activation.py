"""`activation`: every feed-forward and every expert gets another activation."""

from collections.abc import Callable
from typing import Any

import kanawa as kn
from kanawa.contracts import FeedForward
from kanawa.errors import UsageError

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
