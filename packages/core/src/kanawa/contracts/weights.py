"""Weights that can be kept and multiplied in other ways than one dense array, and adapters beside them.

A layer that declares its weights through `Weighted` is reached by every weight form (quantised training, quantised
storage) and, where it has an adapter slot, by every adapter (LoRA and its kin), without knowing any of them.
"""

import abc
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kanawa.arrays.axes import LogicalAxes
from kanawa.arrays.init import Initializer, fan_in_normal
from kanawa.arrays.materialize import materialized, materialized_gradient
from kanawa.arrays.plan import current_plan
from kanawa.arrays.spec import ParamSpec
from kanawa.config import FROM_PARENT, Size
from kanawa.errors import ModuleError, did_you_mean
from kanawa.kernels.matmul import matmul
from kanawa.module import Module, nowrap

#: The name under which a model offers the slot of each token's adapter.
ADAPTERS = "adapters"
#: The arrays that keep one weight, by the suffix of their parameter's name; "" is the main one.
Kept = Mapping[str, jax.Array]


class WeightForm(Module):
    """How one weight is kept in arrays, and how activations are multiplied by it. It owns no parameters itself.

    `spec` is always the spec of the dense weight; its `fan_in_axes` are the dimensions a product contracts.
    """

    @nowrap
    def specs(self, spec: ParamSpec) -> dict[str, ParamSpec]:
        """Returns the specs of the arrays that keep the weight, by suffix; by default the dense weight alone."""
        return {"": spec}

    @nowrap
    def keep(self, weight: Array, spec: ParamSpec) -> dict[str, Array]:
        """Returns the arrays that keep a dense fp32 weight."""
        del spec
        return {"": weight}

    @nowrap
    def dense(self, kept: Kept, spec: ParamSpec, dtype: Any) -> Array:
        """Returns the dense weight, or the nearest that was kept of it."""
        del spec
        return kept[""].astype(dtype)

    @abc.abstractmethod
    def product(self, x: Float[Array, "..."], kept: Kept, spec: ParamSpec) -> Float[Array, "..."]:
        """Returns x contracted over its trailing dimensions with the weight's leading ones, in x's dtype."""


class Adapter(Module):
    """A small trained change of a dense projection; a slot of the projection, so the weight keeps its path.

    At initialisation it must change nothing: a base model's checkpoint then gives the same outputs with it.
    """

    class Config(Module.Config):
        input_shape: tuple[Size, ...] = FROM_PARENT
        output_shape: tuple[Size, ...] = FROM_PARENT
        axes: tuple[str | None, ...] = FROM_PARENT

    @abc.abstractmethod
    def forward(
        self, x: Float[Array, "..."], y: Float[Array, "..."], weight: Callable[[], Float[Array, "..."]]
    ) -> Float[Array, "..."]:
        """Returns the adapted product, given the input, the plain product y = x @ weight, and the dense weight."""

    @nowrap
    @abc.abstractmethod
    def merged(self, params: Mapping[str, Any], weight: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns the one dense weight that does the same; `params` are the adapter's own, unstacked."""

    @nowrap
    def factors(self, params: Mapping[str, Any]) -> tuple[Array, Array] | None:
        """Returns (a [*inputs, rank], b [rank, *outputs]) whose product is what it adds to the weight.

        None, by default, for a change that is no such product, such as one that depends on the weight.
        """
        del params
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
        """Returns what one slot's parameters hold for an adapter of these `factors`, or of a lower rank than its own.

        All are host arrays: an adapter is put into a server that runs, which must not compile. Raises ModuleError for
        a higher one.
        """


class Weighted(Module, abstract=True):
    """A module whose weights may be kept in another form. `setup` must call `super().setup()` first."""

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
        """Declares a weight, like `add_param`; other forms keep it as `name` and `name` plus a suffix."""
        spec = ParamSpec(tuple(shape), tuple(axes), init=init or fan_in_normal(), **traits)
        self.weight_specs[name] = spec
        for suffix, kept in self.kept_specs(name).items():
            self._check_declaration(name + suffix)
            self.param_specs[name + suffix] = kept

    @nowrap
    def kept_specs(self, name: str) -> dict[str, ParamSpec]:
        """Returns the specs of the arrays that keep a weight, by suffix; raises ModuleError for an unknown one."""
        if name not in self.weight_specs:
            message = f"{self.path} has no weight {name!r}{did_you_mean(name, self.weight_specs)}"
            raise ModuleError(message)
        spec = self.weight_specs[name]
        return {"": spec} if self.form is None else self.form.specs(spec)

    @nowrap
    def adapter_of(self, name: str) -> Adapter | None:
        """Returns the adapter in the slot `adapter` where it changes this weight's product; by default none does."""
        del name
        return None

    def dense_weight(self, name: str) -> Float[Array, "..."]:
        """Returns the dense weight in the compute dtype."""
        if self.form is None:
            return self.param(name)
        spec = self.weight_specs[name]
        return self.form.dense(self._kept(name), spec, jnp.dtype(current_plan().precision.compute))

    def product(self, x: Float[Array, "..."], name: str) -> Float[Array, "..."]:
        """Returns x contracted over its trailing dimensions with the fan-in dimensions, which lead, of the weight."""
        x = materialized(x)
        if self.form is not None:
            y = self.form.product(x, self._kept(name), self.weight_specs[name])
        else:
            y = matmul(x, self.param(name), len(self.weight_specs[name].fan_in_axes))
        return materialized_gradient(y)

    def _kept(self, name: str) -> dict[str, Array]:
        # What comes with a weight, such as its scales, is small and stays as it is stored.
        kept = self.kept_specs(name)
        return {
            suffix: self.param(name + suffix, jnp.dtype(spec.dtype) if suffix else None)
            for suffix, spec in kept.items()
        }
