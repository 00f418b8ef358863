"""A Flax NNX module as a feed-forward."""

from collections.abc import Callable
from typing import Any

import jax
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.errors import ModuleError

from kanawa_layers.adapters.adapted import AdaptedFeedForward, library, parameter_name


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
