"""Weights that can be stored, multiplied and fused in other forms than one dense array, and their adapters.

A layer that declares its weights through `Weighted` is reached by every weight form (quantised training, quantised
storage) and, where it has an adapter slot, by every adapter (LoRA and others), without knowing any of them.
"""

import abc
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kanawa.arrays.axes import LogicalAxes
from kanawa.arrays.init import Initializer, fan_in_normal
from kanawa.arrays.materialize import materialized, materialized_gradient
from kanawa.arrays.plan import current_plan
from kanawa.arrays.spec import ParamSpec
from kanawa.config import FROM_PARENT, Size
from kanawa.errors import ModuleError, did_you_mean
from kanawa.kernels.grouped_matmul import grouped_matmul
from kanawa.kernels.matmul import matmul
from kanawa.module import Module, nowrap

#: The name under which a model offers the slot of each token's adapter.
ADAPTERS = "adapters"
#: The arrays that store one weight, by the suffix of their parameter's name; "" is the main one.
StoredWeight = Mapping[str, jax.Array]


class WeightForm(Module):
    """How one weight is stored in arrays, and how activations are multiplied by it. It has no parameters itself.

    `spec` is always the spec of the dense weight; its `fan_in_axes` are the dimensions that a matmul contracts.
    """

    @nowrap
    def specs(self, spec: ParamSpec) -> dict[str, ParamSpec]:
        """Returns the specs of the arrays that store the weight, by suffix; by default the dense weight alone."""
        return {"": spec}

    @nowrap
    def store(self, weight: Array, spec: ParamSpec) -> dict[str, Array]:
        """Returns the arrays that store a dense fp32 weight."""
        del spec
        return {"": weight}

    @nowrap
    def dense(self, stored: StoredWeight, spec: ParamSpec, dtype: Any) -> Array:
        """Returns the dense weight, as precisely as it is stored."""
        del spec
        return stored[""].astype(dtype)

    @abc.abstractmethod
    def matmul(self, x: Float[Array, "..."], stored: StoredWeight, spec: ParamSpec) -> Float[Array, "..."]:
        """Returns x contracted over its trailing dimensions with the weight's leading ones, in x's dtype."""

    def grouped_matmul(
        self, x: Float[Array, "M K"], stored: StoredWeight, spec: ParamSpec, group_sizes: Int[Array, " G"]
    ) -> Float[Array, "M N"]:
        """Returns each group of rows times its own matrix of the weight [G, K, N]; by default of the dense weight."""
        return grouped_matmul(x, self.dense(stored, spec, x.dtype), group_sizes)


class Adapter(Module):
    """A small trained change of a dense projection; a slot of the projection, so the weight's path is unchanged.

    At initialisation it must change nothing: a base model's outputs are then the same with it.
    """

    class Config(Module.Config):
        input_shape: tuple[Size, ...] = FROM_PARENT
        output_shape: tuple[Size, ...] = FROM_PARENT
        axes: tuple[str | None, ...] = FROM_PARENT

    @abc.abstractmethod
    def forward(
        self, x: Float[Array, "..."], y: Float[Array, "..."], weight: Callable[[], Float[Array, "..."]]
    ) -> Float[Array, "..."]:
        """Returns the adapted output for the input x, the plain output y = x @ weight, and the dense weight."""

    @nowrap
    @abc.abstractmethod
    def merged(self, params: Mapping[str, Any], weight: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns the equivalent dense weight; `params` are the adapter's own, unstacked."""

    @nowrap
    def factors(self, params: Mapping[str, Any]) -> tuple[Array, Array] | None:
        """Returns (a [*inputs, rank], b [rank, *outputs]) whose matmul is added to the weight.

        None, by default, for any other change, such as one that depends on the weight.
        """
        del params
        return None

    @nowrap
    def with_factors(self, params: Mapping[str, Any], a: Any, b: Any) -> dict[str, Any] | None:
        """Returns parameters whose `factors` multiply to those of a and b, of this rank or a lower one; host arrays.

        Both sides may have the leading axes of stacks. None, by default, for what has no factors. Raises ModuleError
        for a higher rank.
        """
        del params, a, b
        return None


class AdapterPool(Adapter):
    """Several adapters side by side: each token uses the one in the slot of its sequence.

    An empty slot changes nothing. Parameters have an axis `adapters` of `slots`; the model says each token's slot by
    offering `ADAPTERS`, int32 [batch, length], 0 for none.
    """

    class Config(Adapter.Config):
        slots: Size = 4
        rank: Size = 16

    @nowrap
    @abc.abstractmethod
    def slot(self, a: Any, b: Any) -> dict[str, Any]:
        """Returns one slot's parameters for an adapter of these `factors`, of the pool's rank or a lower one.

        All are host arrays: loading an adapter into a running server must not compile. Raises ModuleError for a higher
        rank.
        """


class Weighted(Module, abstract=True):
    """A module whose weights may be stored in another form. `setup` must call `super().setup()` first."""

    class Config(Module.Config):
        form: WeightForm.Config | None = None

    form: WeightForm | None

    def setup(self) -> None:
        """Declares the form and no weight."""
        self.weight_specs: dict[str, ParamSpec] = {}
        self.add_child("form", self.config.form)

    @nowrap
    def add_weight(
        self, name: str, shape: tuple[int, ...], *, axes: LogicalAxes, init: Initializer | None = None, **traits: Any
    ) -> None:
        """Declares a weight, like `add_param`; other forms store it as `name` and `name` plus a suffix."""
        spec = ParamSpec(tuple(shape), tuple(axes), init=init or fan_in_normal(), **traits)
        self.weight_specs[name] = spec
        for suffix, stored in self.stored_specs(name).items():
            self._check_declaration(name + suffix)
            self.param_specs[name + suffix] = stored

    @nowrap
    def stored_specs(self, name: str) -> dict[str, ParamSpec]:
        """Returns the specs of the arrays that store a weight, by suffix; raises ModuleError for an unknown one."""
        if name not in self.weight_specs:
            message = f"{self.path} has no weight {name!r}{did_you_mean(name, self.weight_specs)}"
            raise ModuleError(message)
        spec = self.weight_specs[name]
        return {"": spec} if self.form is None else self.form.specs(spec)

    @nowrap
    def adapter_of(self, name: str) -> Adapter | None:
        """Returns the adapter of this weight; by default None."""
        del name
        return None

    def dense_weight(self, name: str) -> Float[Array, "..."]:
        """Returns the dense weight in the compute dtype."""
        if self.form is None:
            return self.param(name)
        spec = self.weight_specs[name]
        return self.form.dense(self._stored(name), spec, jnp.dtype(current_plan().precision.compute))

    def matmul(self, x: Float[Array, "..."], name: str) -> Float[Array, "..."]:
        """Returns x contracted over its trailing dimensions with the fan-in dimensions, which lead, of the weight."""
        x = materialized(x)
        if self.form is not None:
            y = self.form.matmul(x, self._stored(name), self.weight_specs[name])
        else:
            y = matmul(x, self.param(name), len(self.weight_specs[name].fan_in_axes))
        return materialized_gradient(y)

    def grouped_matmul(self, x: Float[Array, "M K"], name: str, group_sizes: Int[Array, " G"]) -> Float[Array, "M N"]:
        """Returns each group of rows times its own matrix of the weight [G, K, N]."""
        if self.form is None:
            return grouped_matmul(x, self.param(name), group_sizes)
        return self.form.grouped_matmul(x, self._stored(name), self.weight_specs[name], group_sizes)

    def _stored(self, name: str) -> dict[str, Array]:
        # Scales and the like are small: they keep the dtype in which they are stored.
        return {
            suffix: self.param(name + suffix, jnp.dtype(spec.dtype) if suffix else None)
            for suffix, spec in self.stored_specs(name).items()
        }


class AdjustsParameters(Module, abstract=True):
    """A layer that changes its own parameters after an update, by what its state recorded in the step."""

    @nowrap
    @abc.abstractmethod
    def adjusted(self, params: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the layer's parameters; both may have a stack's leading axes. Pure and traceable."""


def adjust_parameters(model: Module, params: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a model's parameters with every such layer's adjusted, innermost first."""
    below = {
        name: adjust_parameters(child, params[name], state[name])
        for name, child in model.children.items()
        if isinstance(params.get(name), Mapping) and isinstance(state.get(name), Mapping)
    }
    result = {**params, **below}
    return model.adjusted(result, state) if isinstance(model, AdjustsParameters) else result


class Fusable(Module, abstract=True):
    """A layer that can be rewritten to compute the same with fewer or faster matmuls of few rows.

    With few rows a matmul costs what reading its weight and starting it cost, so engines fuse what they can. Training
    and checkpoints have separate weights.
    """

    @classmethod
    @abc.abstractmethod
    def fused_config(cls, cfg: Any) -> Any:
        """Returns the config of the fused layer, or None where weights aren't alike or plain."""

    @nowrap
    @abc.abstractmethod
    def fuse(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fused layer's parameters; both may have a stack's leading axes."""
