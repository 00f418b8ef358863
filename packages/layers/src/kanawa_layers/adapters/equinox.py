"""An Equinox module as a feed-forward."""

from collections.abc import Callable
from typing import Any

import jax
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.errors import ModuleError

from kanawa_layers.adapters.adapted import AdaptedFeedForward, library, parameter_name


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
