"""Metrics as mergeable sums: added up over layers, microbatches, shards and hosts, divided once, on the host."""

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax.tree_util import register_pytree_node_class


class Metric:
    """A value that merges with others of its kind without losing its meaning; here an fp32 array of sums, `total`.

    A kind is a class, registered with JAX, of arrays named by `fields`, and three functions: `pair` of two arrays,
    `slices` of the leading axis of one, `shards` of those of all shards, by the names of mesh axes.
    """

    fields: ClassVar[tuple[str, ...]] = ("total",)
    pair: ClassVar[Any] = staticmethod(jnp.add)
    slices: ClassVar[Any] = staticmethod(lambda x: jnp.sum(x, 0))
    shards: ClassVar[Any] = staticmethod(jax.lax.psum)

    def __init__(self, total: Any) -> None:
        self.total = jnp.asarray(total, jnp.float32)

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Returns the arrays it consists of."""
        return tuple(getattr(self, name) for name in self.fields), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple[Any, ...]) -> Self:
        """Rebuilds the metric without conversions, so that placeholders pass through."""
        del aux
        metric = object.__new__(cls)
        vars(metric).update(zip(cls.fields, children, strict=True))
        return metric

    def merge(self, other: Self) -> Self:
        """Returns the metric of both together."""
        merged: Self = jax.tree.map(self.pair, self, other)
        return merged

    def reduce_leading(self) -> Self:
        """Returns the metric of all slices along the leading axis of its arrays."""
        reduced: Self = jax.tree.map(self.slices, self)
        return reduced

    def across(self, axis_names: tuple[str, ...]) -> Self:
        """Returns the metric of all shards; only inside shard_map over these mesh axes."""
        summed: Self = jax.tree.map(lambda x: self.shards(x, axis_names), self)
        return summed

    def value(self) -> Any:
        """Returns its number."""
        return self.total


@register_pytree_node_class
class Mean(Metric):
    """A weighted mean, stored as (sum of weight x value, sum of weights), fp32; 0 where the weight is 0."""

    fields = ("total", "weight")

    def __init__(self, total: Any, weight: Any = 1.0) -> None:
        super().__init__(total)
        self.weight = jnp.asarray(weight, jnp.float32)

    @classmethod
    def of(cls, values: jax.Array) -> Self:
        """Returns the plain mean of an array's elements."""
        return cls(jnp.sum(values.astype(jnp.float32)), values.size)

    def value(self) -> Any:
        """Returns total / weight, 0 where the weight is 0."""
        # A batch of padding alone has no weight: 0 is shown, and no NaN reaches an average.
        return self.total / jnp.where(self.weight == 0, 1, self.weight)


@register_pytree_node_class
class Sum(Metric):
    """A sum, such as a count of tokens."""


@register_pytree_node_class
class Max(Metric):
    """A maximum."""

    pair = staticmethod(jnp.maximum)
    slices = staticmethod(lambda x: jnp.max(x, 0))
    shards = staticmethod(jax.lax.pmax)


@register_pytree_node_class
class Last(Metric):
    """The latest value, such as a learning rate; of layers or microbatches the last one's, of shards the mean."""

    pair = staticmethod(lambda earlier, later: later)
    slices = staticmethod(lambda x: x[-1])
    shards = staticmethod(jax.lax.pmean)
