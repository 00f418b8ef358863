"""A feed-forward computed by another library's module with parameters of ours.

Each array of the foreign module is one parameter of this layer: initialised from our key, sharded by our rules, in our
checkpoints and optimizer state under its own path.
"""

import abc
import dataclasses
import functools
import importlib
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import FeedForward, Sequences
from kanawa.errors import ModuleError, UsageError, did_you_mean


class AdaptedFeedForward(FeedForward):
    """Builds `module`, a `kn.config_for` of the foreign class, once for its shapes and once a parameter to draw it.

    Its arguments may be FROM_PARENT under the names `input_dim`, `hidden_dim` and the library's own for randomness.
    `axes` names the dimensions of parameters for sharding: {"layers_0_weight": ("mlp", "embed")}; by default none.
    Raises ModuleError for axes of a parameter that isn't there and for arrays that aren't parameters.
    """

    class Config(FeedForward.Config):
        module: kn.CallableConfig = kn.REQUIRED
        axes: dict[str, tuple[str | None, ...]] = {}

    def setup(self) -> None:
        """Declares one parameter for each array of the foreign module."""
        described = jax.eval_shape(self.arrays, jax.random.key(0))
        unknown = sorted(self.config.axes.keys() - described.keys())
        if unknown:
            message = (
                f"{self.path}: axes name {unknown[0]!r}, which is no parameter{did_you_mean(unknown[0], described)}"
            )
            raise ModuleError(message)
        for name, leaf in described.items():
            whole = (None,) * len(leaf.shape)
            self.add_param(
                name,
                leaf.shape,
                axes=self.config.axes.get(name, whole),
                init=DrawnByModule(self, name),
                dtype=str(leaf.dtype),
                # A foreign module doesn't declare weight decay: matrices decay, biases and scales of norms don't.
                weight_decay=float(len(leaf.shape) > 1),
            )

    @kn.nowrap
    @abc.abstractmethod
    def arrays(self, key: jax.Array) -> dict[str, jax.Array]:
        """Returns the foreign module's parameters by name, drawn from `key`."""

    @abc.abstractmethod
    def call(self, tokens: Float[Array, "N E"], values: dict[str, jax.Array]) -> Float[Array, "N E"]:
        """Returns the foreign module's output with these parameters, for each token."""

    def forward(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the transformed tokens; raises ModuleError where the module changes their width."""
        del sequences
        values = {name: self.param(name) for name in self.param_specs}
        tokens = x.reshape(-1, x.shape[-1])
        y = self.call(tokens, values)
        if y.shape != tokens.shape:
            message = f"{self.path}: {self._callee} turns tokens {tokens.shape} into {y.shape}, expected the same shape"
            raise ModuleError(message)
        return y.reshape(x.shape).astype(x.dtype)

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs for each element of a matrix."""
        del context_length
        return 2.0 * sum(math.prod(spec.shape) for spec in self.param_specs.values() if len(spec.shape) > 1)

    @property
    def _callee(self) -> str:
        return str(self.config.module.callee.__qualname__)

    def _build_foreign(self, **random: Any) -> Any:
        """Returns the foreign module."""
        cfg = self.config
        offered = {"input_dim": cfg.input_dim, "hidden_dim": cfg.hidden_dim, **random}
        return cfg.module.build(
            **{
                name: offered[name]
                for name, value in vars(cfg.module).items()
                if value is kn.FROM_PARENT and name in offered
            }
        )


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnByModule:
    """Draws a parameter as the foreign module does; under jit, its other draws cost nothing."""

    layer: AdaptedFeedForward
    name: str

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: jnp.dtype, fan_in: int, fan_out: int) -> jax.Array:
        """Returns the array; shape and fans are the module's own."""
        del shape, fan_in, fan_out
        return self.layer.arrays(key)[self.name].astype(dtype)


def parameter_name(path: tuple[Any, ...]) -> str:
    """Returns the name of a leaf: "layers_0_weight" of `.layers[0].weight`."""
    return re.sub(r"\W+", "_", jax.tree_util.keystr(path)).strip("_")


@functools.cache
def library(name: str, extra: str) -> Any:
    """Returns another library's module, imported now; raises UsageError with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        message = f"{name} is not installed: pip install 'kanawa-layers[{extra}]'"
        raise UsageError(message) from error
