"""What other people's checkpoints call a module's parts, as data: relative names and invertible forms.

Every module's config has the slot `foreign`. Its class default speaks the names that Llama has in Hugging Face
checkpoints, or what is usual where Llama has no such part; a recipe whose checkpoints differ sets the slot.
"""

import abc
import math

import numpy as np

from kanawa.arrays.spec import ParamSpec
from kanawa.config import Config, Configurable


class Form(Configurable):
    """An invertible change between one of our parameters (no layer axis) and a foreign tensor, bits kept."""

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
        rank = len(spec.shape)
        inputs = [a % rank for a in spec.fan_in_axes]
        outputs = [a % rank for a in spec.fan_out_axes]
        others = [a for a in range(rank) if a not in inputs and a not in outputs]
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
    """Our axes in another order; -1 stands for a new axis of length one: [width, channels] with (1, -1, 0) is
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
        order = [a for a in self.config.order if a >= 0]
        return tensor.reshape([spec.shape[a] for a in order]).transpose(np.argsort(order))


class Tensor(Config):
    """A foreign tensor that holds one parameter.

    `{}` in the name stands for the index along the parameter's first axis: "{}.w1.weight" of a parameter
    [experts, …] is one tensor an expert. `form` None keeps the array as it is.
    """

    name: str = ""
    form: Form.Config | None = None


class Joined(Config):
    """A foreign tensor that several parts share, one after another along `axis` or, `interleaved`, in turn.

    A part is a parameter of the module, in the form its entry in `tensors` gives, or a child, all of whose tensors
    join with the other children's of the same relative name. `name` is the tensor's, or the children's common name.
    """

    name: str
    parts: tuple[str, ...]
    axis: int = 0
    interleaved: bool = False


class Sliced(Config):
    """The foreign part that holds `start` to `stop` along one of our axes, counted from the last: -2 is before it."""

    name: str
    axis: int
    start: int | None = None
    stop: int | None = None


class Foreign(Config):
    """Relative names of a module's parts.

    `children` names children; "" adds no segment, `{}` stands for the layer's index in a stack or a list. `tensors`
    names parameters and state arrays; a bare string is the name of an unchanged array. `joined` lists shared
    tensors; `apart` maps a child to the foreign parts its arrays are cut into.
    `repeats` names tensors that may be there again, with the shared module and parameter they must equal:
    {"weight": "embedding.weight"}. `ignored` are patterns of tensors that say nothing (masks, frequency tables).
    `optional_prefix` is one that some files leave out.
    """

    INTRINSIC = ("children", "tensors", "joined", "apart", "repeats", "ignored", "optional_prefix")

    children: dict[str, str] = {}
    tensors: dict[str, str | Tensor] = {}
    joined: tuple[Joined, ...] = ()
    apart: dict[str, tuple[Sliced, ...]] = {}
    repeats: dict[str, str] = {}
    ignored: tuple[str, ...] = ()
    optional_prefix: str = ""
