"""Metrics as mergeable sums: added up over layers, microbatches, shards and hosts, divided once, on the host."""

import abc
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.tree_util import register_pytree_node_class


class Metric(abc.ABC):
    """A value that merges with others of its kind without losing its meaning."""

    __slots__: tuple[str, ...] = ()

    @abc.abstractmethod
    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Returns the arrays it consists of."""

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple[Any, ...]) -> Self:
        """Rebuilds the metric without conversions, so that placeholders pass through."""
        del aux
        metric = object.__new__(cls)
        for name, child in zip(cls.__slots__, children, strict=True):
            setattr(metric, name, child)
        return metric

    @abc.abstractmethod
    def merge(self, other: Self) -> Self:
        """Returns the metric of both together."""

    @abc.abstractmethod
    def reduce_leading(self) -> Self:
        """Returns the metric of all slices along the leading axis of its arrays."""

    @abc.abstractmethod
    def across(self, axis_names: tuple[str, ...]) -> Self:
        """Returns the metric of all shards; only inside shard_map over these mesh axes."""

    @abc.abstractmethod
    def value(self) -> Any:
        """Returns its number."""


def _as_array(value: Any) -> jax.Array:
    return jnp.asarray(value, jnp.float32)


@register_pytree_node_class
class Mean(Metric):
    """A weighted mean, stored as (sum of weight x value, sum of weights), fp32."""

    __slots__ = ("total", "weight")

    def __init__(self, total: Any, weight: Any = 1.0) -> None:
        self.total = _as_array(total)
        self.weight = _as_array(weight)

    @classmethod
    def of(cls, values: jax.Array) -> Self:
        """Returns the plain mean of an array's elements."""
        return cls(jnp.sum(values.astype(jnp.float32)), values.size)

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Returns (total, weight)."""
        return (self.total, self.weight), None

    def merge(self, other: Self) -> Self:
        """Returns the mean over both."""
        return type(self)(self.total + other.total, self.weight + other.weight)

    def reduce_leading(self) -> Self:
        """Returns the mean over the slices."""
        return type(self)(jnp.sum(self.total, 0), jnp.sum(self.weight, 0))

    def across(self, axis_names: tuple[str, ...]) -> Self:
        """Returns the mean over shards."""
        return type(self)(jax.lax.psum(self.total, axis_names), jax.lax.psum(self.weight, axis_names))

    def value(self) -> Any:
        """Returns total / weight, 0 where the weight is 0."""
        # A batch of padding alone has no weight: 0 is shown, and no NaN reaches an average.
        return self.total / jnp.where(self.weight == 0, 1, self.weight)


class _Single(Metric):
    __slots__ = ("total",)

    def __init__(self, total: Any) -> None:
        self.total = _as_array(total)

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Returns the one array."""
        return (self.total,), None

    def value(self) -> Any:
        """Returns the number."""
        return self.total


@register_pytree_node_class
class Sum(_Single):
    """A sum, such as a count of tokens."""

    # Named again in each class, because tree_unflatten fills the slots of the class itself; and inherited ones aren't
    # in it.
    __slots__ = ("total",)

    def merge(self, other: Self) -> Self:
        """Returns the sum of both."""
        return type(self)(self.total + other.total)

    def reduce_leading(self) -> Self:
        """Returns the sum over the slices."""
        return type(self)(jnp.sum(self.total, 0))

    def across(self, axis_names: tuple[str, ...]) -> Self:
        """Returns the sum over shards."""
        return type(self)(jax.lax.psum(self.total, axis_names))


@register_pytree_node_class
class Max(_Single):
    """A maximum."""

    __slots__ = ("total",)

    def merge(self, other: Self) -> Self:
        """Returns the larger."""
        return type(self)(jnp.maximum(self.total, other.total))

    def reduce_leading(self) -> Self:
        """Returns the largest slice."""
        return type(self)(jnp.max(self.total, 0))

    def across(self, axis_names: tuple[str, ...]) -> Self:
        """Returns the largest shard's."""
        return type(self)(jax.lax.pmax(self.total, axis_names))


@register_pytree_node_class
class Last(_Single):
    """The latest value, such as a learning rate; of several layers or microbatches, the last one's."""

    __slots__ = ("total",)

    def merge(self, other: Self) -> Self:
        """Returns the other, later one."""
        return type(self)(other.total)

    def reduce_leading(self) -> Self:
        """Returns the last slice."""
        return type(self)(self.total[-1])

    def across(self, axis_names: tuple[str, ...]) -> Self:
        """Returns the mean over shards, which hold the same value."""
        return type(self)(jax.lax.pmean(self.total, axis_names))
