"""A feed-forward computed by an Equinox or Flax NNX module with parameters of ours.

Each array of the foreign module is one parameter of this layer: initialised from our key, sharded by our rules, in our
checkpoints and optimizer state under its own path.
"""

import abc
import dataclasses
import functools
import importlib
import math
import re
from collections.abc import Callable, Sequence
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


class EquinoxFeedForward(AdaptedFeedForward):
    """Applies an Equinox module to each token, as Equinox modules expect: one example, `jax.vmap` around.

    `key=kn.FROM_PARENT` among the module's arguments is our key. `draws` says that it also takes a key when called, as
    dropout does; outside of training it is in inference mode. State (`eqx.nn.State`) is not supported.
    """

    class Config(AdaptedFeedForward.Config):
        draws: bool = False

    @kn.nowrap
    def arrays(self, key: jax.Array) -> dict[str, jax.Array]:
        """Returns the module's floating arrays."""
        eqx = library("equinox", "equinox")
        params, _ = eqx.partition(self._build_foreign(key=key), eqx.is_inexact_array)
        leaves, _ = jax.tree_util.tree_flatten_with_path(params)
        return {parameter_name(path): leaf for path, leaf in leaves}

    def call(self, tokens: Float[Array, "N E"], values: dict[str, jax.Array]) -> Float[Array, "N E"]:
        """Returns the module's output for each token."""
        eqx = library("equinox", "equinox")
        module: Callable[..., jax.Array] = eqx.nn.inference_mode(self._with(values), not self.train)
        if not (self.config.draws and self.train):
            return jax.vmap(module)(tokens)
        keys = jax.random.split(self.next_key(), tokens.shape[0])
        return jax.vmap(lambda token, key: module(token, key=key))(tokens, keys)

    def _with(self, values: dict[str, jax.Array]) -> Any:
        """Returns the module with its arrays replaced by these."""
        eqx = library("equinox", "equinox")
        # Abstract, since the arrays it would draw are replaced at once.
        abstract = eqx.filter_eval_shape(lambda key: self._build_foreign(key=key), jax.random.key(0))

        def filled(path: tuple[Any, ...], leaf: Any) -> Any:
            if not isinstance(leaf, jax.ShapeDtypeStruct):
                return leaf
            name = parameter_name(path)
            if name not in values:
                message = f"{self.path}: {self._callee} holds {name}, {leaf.dtype}: only floating arrays can be trained"
                raise ModuleError(message)
            return values[name]

        return jax.tree_util.tree_map_with_path(filled, abstract)


class NNXFeedForward(AdaptedFeedForward):
    """Applies an NNX module to all tokens at once; `rngs=kn.FROM_PARENT` among its arguments are our key.

    Its `nnx.Param`s are trained. Other variables, such as batch statistics and dropout's random state, are not
    supported: raises ModuleError naming them.
    """

    @kn.nowrap
    def arrays(self, key: jax.Array) -> dict[str, jax.Array]:
        """Returns the module's parameters."""
        _, params = self._split(key)
        leaves, _ = jax.tree_util.tree_flatten_with_path(params)
        return {_name(path): leaf for path, leaf in leaves}

    def call(self, tokens: Float[Array, "N E"], values: dict[str, jax.Array]) -> Float[Array, "N E"]:
        """Returns the module's output."""
        graphs: list[Any] = []

        def describe(key: jax.Array) -> Any:
            graph, params = self._split(key)
            graphs.append(graph)  # It is static, so a traced function can't return it.
            return params

        params = jax.eval_shape(describe, jax.random.key(0))
        params = jax.tree_util.tree_map_with_path(lambda path, _: values[_name(path)], params)
        module: Callable[..., jax.Array] = library("flax.nnx", "flax").merge(graphs[0], params)
        return module(tokens)

    def _split(self, key: jax.Array) -> tuple[Any, Any]:
        """Returns the module's graph and its parameters."""
        nnx = library("flax.nnx", "flax")
        graph, params, rest = nnx.split(self._build_foreign(rngs=nnx.Rngs(key)), nnx.Param, ...)
        others = sorted(".".join(map(str, path)) for path, _ in nnx.to_flat_state(rest))
        if others:
            message = f"{self.path}: {self._callee} holds variables that aren't parameters: {', '.join(others)}"
            raise ModuleError(message)
        return graph, params


def _name(path: tuple[Any, ...]) -> str:
    """Returns a parameter's name, without the attribute of the variable that holds its array."""
    return parameter_name(path[:-1] if str(path[-1]) == ".value" else path)
