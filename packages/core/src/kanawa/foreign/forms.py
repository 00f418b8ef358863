"""Invertible changes of an array between our form and another library's."""

import abc
import math

import numpy as np

from kanawa.arrays.spec import ParamSpec
from kanawa.config import Configurable


class Form(Configurable):
    """An invertible change between one of our parameters (no layer axis) and a foreign tensor; bits stay the same."""

    @abc.abstractmethod
    def shape(self, spec: ParamSpec) -> tuple[int, ...]:
        """Returns the foreign shape of a parameter."""

    @abc.abstractmethod
    def to_foreign(self, array: np.ndarray, spec: ParamSpec) -> np.ndarray:
        """Returns the foreign array of a parameter's value."""

    @abc.abstractmethod
    def from_foreign(self, tensor: np.ndarray, spec: ParamSpec) -> np.ndarray:
        """Returns the parameter's value of a foreign array."""


class Matrix(Form):
    """Input axes become one and output axes one: [*others, out, in] as in torch's Linear, or [*others, in, out].

    Which axes are which, the ParamSpec's fans say.
    """

    class Config(Form.Config):
        transposed: bool = True

    def _order(self, spec: ParamSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the permutation of our axes, and the foreign shape."""
        # Which axes are inputs, the layer says once, for its fans; forms need no second table.
        rank = len(spec.shape)
        inputs = [a % rank for a in spec.fan_in_axes]
        outputs = [a % rank for a in spec.fan_out_axes]
        others = [a for a in range(rank) if a not in inputs and a not in outputs]
        # torch's Linear holds [out, in] and multiplies by its transpose.
        last = (outputs, inputs) if self.config.transposed else (inputs, outputs)
        merged = tuple(math.prod(spec.shape[a] for a in axes) for axes in last)
        return (*others, *last[0], *last[1]), (*(spec.shape[a] for a in others), *merged)

    def shape(self, spec: ParamSpec) -> tuple[int, ...]:
        """Returns the matrix's shape."""
        return self._order(spec)[1]

    def to_foreign(self, array: np.ndarray, spec: ParamSpec) -> np.ndarray:
        """Returns the matrix."""
        order, shape = self._order(spec)
        return array.transpose(order).reshape(shape)

    def from_foreign(self, tensor: np.ndarray, spec: ParamSpec) -> np.ndarray:
        """Returns the matrix with our axes."""
        order, _ = self._order(spec)
        # argsort of a permutation is its inverse.
        return tensor.reshape([spec.shape[a] for a in order]).transpose(np.argsort(order))


class Flat(Form):
    """All axes become one, as in the bias of a projection to [heads, head_dim]."""

    def shape(self, spec: ParamSpec) -> tuple[int, ...]:
        """Returns the length."""
        return (spec.size,)

    def to_foreign(self, array: np.ndarray, spec: ParamSpec) -> np.ndarray:
        """Returns the flat array."""
        return array.reshape(spec.size)

    def from_foreign(self, tensor: np.ndarray, spec: ParamSpec) -> np.ndarray:
        """Returns our shape."""
        return tensor.reshape(spec.shape)


class Permuted(Form):
    """Our axes in another order; -1 is a new axis of length one: [width, channels] with (1, -1, 0) is
    [channels, 1, width], torch's depthwise convolution.
    """

    class Config(Form.Config):
        order: tuple[int, ...] = ()

    def shape(self, spec: ParamSpec) -> tuple[int, ...]:
        """Returns the permuted shape."""
        return tuple(1 if a < 0 else spec.shape[a] for a in self.config.order)

    def to_foreign(self, array: np.ndarray, spec: ParamSpec) -> np.ndarray:
        """Returns the permuted array."""
        return array.transpose([a for a in self.config.order if a >= 0]).reshape(self.shape(spec))

    def from_foreign(self, tensor: np.ndarray, spec: ParamSpec) -> np.ndarray:
        """Returns our order."""
        # New axes have length one: dropping them is a reshape, and all bits stay.
        order = [a for a in self.config.order if a >= 0]
        return tensor.reshape([spec.shape[a] for a in order]).transpose(np.argsort(order))
