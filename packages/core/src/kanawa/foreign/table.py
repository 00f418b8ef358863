"""From a built model to the table of foreign tensors: name, shape, and which slices of which parameters."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from kanawa.arrays.spec import ParamSpec
from kanawa.errors import ModuleError, did_you_mean
from kanawa.foreign.forms import Form
from kanawa.foreign.names import Joined, Names, Sliced, Tensor

_LISTED = re.compile(r"(\w+)\[(\d+)\]")


class ForeignNameError(ModuleError):
    """A module has parts without a foreign name, or names that can't be right."""


class ForeignTooManyError(ModuleError):
    """A model has more tensors than the caller's limit."""


class NamedModule(Protocol):
    """A node of a module tree, as `kanawa.module.Module`, which builds on this package, declares it."""

    name: str
    config: Any
    num_stacked: int | None
    param_specs: dict[str, ParamSpec]
    state_specs: dict[str, ParamSpec]

    @property
    def parent(self) -> "NamedModule | None":
        """The module that has this one as a child; None at the root."""
        ...

    @property
    def children(self) -> "Mapping[str, NamedModule]":
        """The modules below, by name."""
        ...

    @property
    def path(self) -> str:
        """Where the module is, for error messages."""
        ...

    def shared_module(self, name: str) -> "NamedModule":
        """Returns the module that an ancestor shares under a name."""
        ...

    def layer_number(self, child: str, index: int) -> int:
        """Returns the number that a copy of a stacked or listed child has in foreign names."""
        ...

    def first_layer(self, child: str) -> int:
        """Returns how many layers come before those of a child that is itself a stack."""
        ...


@dataclasses.dataclass(frozen=True)
class Part:
    """A slice of our arrays: `item` is "params" or "state"; `spec` is the slice's own.

    `index` counts layers, then experts; `cut` is what of the rest it takes (empty: all).
    """

    item: str
    path: str
    index: tuple[int, ...]
    spec: ParamSpec
    form: Form | None = None
    cut: tuple[slice, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The slice's shape in the foreign tensor."""
        return self.spec.shape if self.form is None else self.form.shape(self.spec)

    @property
    def where(self) -> tuple[int | slice, ...]:
        """What of the array at `path` it is, as an index."""
        return (*self.index, *self.cut)


@dataclasses.dataclass(frozen=True)
class ForeignTensor:
    """One foreign tensor and the parts it holds, joined along `axis` in turn, a block of each part at a time."""

    name: str
    parts: tuple[Part, ...]
    axis: int = 0
    blocks: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        shapes = [part.shape for part in self.parts]
        whole = list(shapes[0])
        if len(shapes) > 1:
            whole[self.axis] = sum(shape[self.axis] for shape in shapes)
        return tuple(whole)

    def join(self, slices: Iterable[np.ndarray]) -> np.ndarray:
        """Returns the tensor of its parts' slices, in the order of `parts`."""
        arrays = [
            np.asarray(s) if p.form is None else p.form.to_foreign(np.asarray(s), p.spec)
            for p, s in zip(self.parts, slices, strict=True)
        ]
        if len(arrays) == 1:
            return arrays[0]
        axis = self.axis % arrays[0].ndim
        cut = [array.reshape(_cut_in(array.shape, axis, self.blocks)) for array in arrays]
        return np.concatenate(cut, axis=axis + 1).reshape(self.shape)

    def split(self, tensor: np.ndarray) -> list[np.ndarray]:
        """Returns the slices of the parts; the inverse of `join`."""
        pieces = self._pieces(tensor)
        return [
            piece if part.form is None else part.form.from_foreign(piece, part.spec)
            for part, piece in zip(self.parts, pieces, strict=True)
        ]

    def _pieces(self, tensor: np.ndarray) -> list[np.ndarray]:
        if len(self.parts) == 1:
            return [tensor]
        axis = self.axis % tensor.ndim
        widths = [part.shape[axis] // self.blocks for part in self.parts]
        blocks = tensor.reshape(_cut_in(tensor.shape, axis, self.blocks))
        pieces = np.split(blocks, np.cumsum(widths)[:-1], axis=axis + 1)
        return [piece.reshape(part.shape) for piece, part in zip(pieces, self.parts, strict=True)]


def _cut_in(shape: tuple[int, ...], axis: int, blocks: int) -> tuple[int, ...]:
    """Returns a shape with `axis` as two: the blocks, and what lies in one."""
    return (*shape[:axis], blocks, shape[axis] // blocks, *shape[axis + 1 :])


@dataclasses.dataclass(frozen=True)
class ForeignTable:
    """Every tensor by name; `ignored` are patterns.

    `repeats` maps further names to the tensor they must equal, which may be there, and `copies` such that must be.
    """

    tensors: Mapping[str, ForeignTensor]
    repeats: Mapping[str, str]
    copies: Mapping[str, str]
    ignored: tuple[str, ...]
    optional_prefix: str
    aliases: Mapping[str, str]


def table_of(model: NamedModule, *, most: int | None = None) -> ForeignTable:
    """Returns the table of a model; raises ForeignNameError naming the module that doesn't say what it is called.

    `most` is for models that somebody else describes: ForeignTooManyError once there are more tensors.
    """
    walker = _Walker(most)
    tensors: dict[str, ForeignTensor] = {}
    for tensor in walker.walk(model, _Place()):
        if tensor.name in tensors:
            owners = ", ".join(t.parts[0].path for t in (tensors[tensor.name], tensor))
            message = (
                f"two tensors would be called {tensor.name!r}: {owners}; "
                "does a stacked or listed child's name lack '{}'?"
            )
            raise ForeignNameError(message)
        tensors[tensor.name] = tensor
    # A repeat is compared bit by bit, so only tensors that hold one whole array can have one.
    whole = [tensor for tensor in tensors.values() if len(tensor.parts) == 1 and not tensor.parts[0].where]
    by_path = {tensor.parts[0].path: tensor.name for tensor in whole}
    repeats = {name: by_path[path] for name, path in walker.repeats.items() if path in by_path}
    # The first of the copies may be the tensor itself.
    copies = {name: by_path[path] for name, path in walker.copies.items() if path in by_path and name not in tensors}
    names: Names = model.config.foreign
    return ForeignTable(tensors, repeats, copies, tuple(walker.ignored), names.optional_prefix, names.aliases)


class _Place(NamedTuple):
    """Where the walk is: the prefix of names, the path of arrays, the layers' indices, and what is added to numbers."""

    prefix: str = ""
    path: str = ""
    layers: tuple[int, ...] = ()
    first_layer: int = 0

    def below(self, name: str) -> str:
        """Returns the path of a child or an array."""
        return f"{self.path}.{name}" if self.path else name


class _Walker:
    """Collects tensors depth first; names grow on the way down, parts are joined on the way up."""

    def __init__(self, most: int | None = None) -> None:
        self._left = most
        self.repeats: dict[str, str] = {}
        self.copies: dict[str, str] = {}
        self.ignored: list[str] = []

    def walk(self, module: NamedModule, at: _Place) -> list[ForeignTensor]:
        """Returns the tensors of a module and all below it."""
        foreign: Names = module.config.foreign
        self.ignored += [_joined_name(at.prefix, pattern) for pattern in foreign.ignored]
        for named, found in ((foreign.repeats, self.repeats), (foreign.copies, self.copies)):
            for name, shared in named.items():
                owner, _, parameter = shared.partition(".")
                found[_joined_name(at.prefix, name)] = f"{_path_of(module.shared_module(owner))}.{parameter}"
        grouped = {part for group in foreign.joined for part in group.parts}
        collected: list[ForeignTensor] = []
        waiting: dict[str, list[ForeignTensor]] = {}
        for name, item, spec in _own_arrays(module):
            into = waiting.setdefault(name, []) if name in grouped else collected
            into += self._own(module, at, name, item, spec, name in grouped)
        for name, child in module.children.items():
            if not _has_arrays(child):
                continue
            if name in grouped or name in foreign.apart:
                # Walked without a prefix: what joins is found by the name relative to the child, and gets the group's
                # name.
                whole = self.walk(child, at._replace(prefix="", path=at.below(name)))
                if name in grouped:
                    waiting[name] = whole
                else:
                    collected += _cut(foreign.apart[name], at.prefix, whole)
            else:
                collected += self._child(module, name, child, at)
        for group in foreign.joined:
            collected += _join(module, group, at.prefix, {p: waiting[p] for p in group.parts if p in waiting})
        return collected

    def _own(
        self, module: NamedModule, at: _Place, name: str, item: str, spec: ParamSpec, joined: bool
    ) -> list[ForeignTensor]:
        """Returns the tensors of one parameter: one, or one for each index of its first axis."""
        foreign: Names = module.config.foreign
        entry = foreign.tensors.get(name, Tensor() if joined else None)
        if entry is None:
            # State without a name is ours alone (a count of calls): others' files don't have it.
            if item == "state":
                return []
            raise ForeignNameError(_undeclared(module, name, "parameter", foreign.tensors))
        tensor = Tensor(name=entry) if isinstance(entry, str) else entry
        form = None if tensor.form is None else tensor.form.build()
        path, full = at.below(name), "" if joined else _joined_name(at.prefix, tensor.name)
        numbered = "{}" in tensor.name
        self._spend(spec.shape[0] if numbered else 1, path)
        if not numbered:
            return [ForeignTensor(full, (Part(item, path, at.layers, spec, form),))]
        inner = _without_first_axis(spec)
        return [
            ForeignTensor(full.replace("{}", str(i)), (Part(item, path, (*at.layers, i), inner, form),))
            for i in range(spec.shape[0])
        ]

    def _spend(self, count: int, path: str) -> None:
        if self._left is not None:
            self._left -= count
            if self._left < 0:
                message = f"the model has more tensors than were expected, {count:,} of them at {path}"
                raise ForeignTooManyError(message)

    def _child(self, module: NamedModule, name: str, child: NamedModule, at: _Place) -> list[ForeignTensor]:
        """Returns the tensors of a child, once for each layer where it is stacked."""
        foreign: Names = module.config.foreign
        listed = _LISTED.fullmatch(name)
        base, position = (listed[1], int(listed[2])) if listed else (name, 0)
        relative = foreign.children.get(name, foreign.children.get(base))
        if relative is None:
            raise ForeignNameError(_undeclared(module, base, "child", foreign.children))
        stacked = child.num_stacked is not None
        if "{}" not in relative and not stacked:
            # A stack without '{}' numbers nothing itself: its layers go on from those before it.
            first_layer = at.first_layer + module.first_layer(name)
            return self.walk(child, _Place(_joined_name(at.prefix, relative), at.below(name), at.layers, first_layer))
        copies: list[ForeignTensor] = []
        for i in range(child.num_stacked or 1):
            number = module.layer_number(name, i if stacked else position) + at.first_layer
            full = _joined_name(at.prefix, relative.replace("{}", str(number)))
            # The number is in the name now: stacks further down count from 0 again.
            copies += self.walk(child, _Place(full, at.below(name), (*at.layers, i) if stacked else at.layers))
        return copies


def _join(
    module: NamedModule, group: Joined, prefix: str, parts: Mapping[str, list[ForeignTensor]]
) -> list[ForeignTensor]:
    if not parts:
        return []
    relative = [{t.name: t for t in tensors} for tensors in parts.values()]
    if len(parts) < len(group.parts) or any(r.keys() != relative[0].keys() for r in relative):
        held = [f"{p}: {', '.join(t.name or 'itself' for t in parts.get(p, ())) or 'nothing'}" for p in group.parts]
        message = f"{module.path}: the parts of {group.name!r} don't hold the same tensors: {'; '.join(held)}"
        raise ForeignNameError(message)
    joined = []
    for name in relative[0]:
        pieces = tuple(part for r in relative for part in r[name].parts)
        # Element by element is as many blocks as there are elements.
        blocks = pieces[0].shape[group.axis] if group.interleaved else group.blocks
        ragged = [p for p in pieces if p.shape[group.axis] % blocks]
        if ragged:
            message = f"{ragged[0].path} has {ragged[0].shape[group.axis]} rows, which don't make {blocks} equal blocks"
            raise ForeignNameError(message)
        joined.append(ForeignTensor(_joined_name(prefix, _joined_name(group.name, name)), pieces, group.axis, blocks))
    return joined


def _cut(slices: Iterable[Sliced], prefix: str, tensors: Iterable[ForeignTensor]) -> list[ForeignTensor]:
    """Returns a child's tensors cut into the named slices."""
    pieces = []
    for piece, tensor in itertools.product(slices, tensors):
        # What is cut must lie in one array: a tensor that is joined and cut too has no meaning here.
        (part,) = tensor.parts
        axis = piece.axis % len(part.spec.shape)
        taken = slice(piece.start, piece.stop)
        length = len(range(part.spec.shape[axis])[taken])
        shape = (*part.spec.shape[:axis], length, *part.spec.shape[axis + 1 :])
        cut = (*(slice(None),) * axis, taken)
        part = dataclasses.replace(part, spec=dataclasses.replace(part.spec, shape=shape, parts=None), cut=cut)
        pieces.append(ForeignTensor(_joined_name(prefix, _joined_name(piece.name, tensor.name)), (part,)))
    return pieces


def _own_arrays(module: NamedModule) -> list[tuple[str, str, ParamSpec]]:
    specs = {"params": module.param_specs, "state": module.state_specs}
    return [(name, item, spec) for item, of in specs.items() for name, spec in of.items()]


def _has_arrays(module: NamedModule) -> bool:
    """Whether a parameter, state with a foreign name, or a repeat of another tensor is in the module or below."""
    foreign: Names = module.config.foreign
    named_state = any(name in foreign.tensors for name in module.state_specs)
    own = bool(module.param_specs) or named_state or bool(foreign.repeats)
    return own or any(map(_has_arrays, module.children.values()))


def _without_first_axis(spec: ParamSpec) -> ParamSpec:
    """Returns the spec of one slice along the first axis."""

    def moved(axes: tuple[int, ...]) -> tuple[int, ...]:
        # Negative axes count from the end, which stays where it is.
        return tuple(a - 1 if a > 0 else a for a in axes)

    return dataclasses.replace(
        spec,
        shape=spec.shape[1:],
        axes=spec.axes[1:],
        fan_in_axes=moved(spec.fan_in_axes),
        fan_out_axes=moved(spec.fan_out_axes),
    )


def _path_of(module: NamedModule) -> str:
    """Returns a module's path from the root, which itself has none."""
    names: list[str] = []
    node: Any = module
    while node.parent is not None:
        names.append(node.name)
        node = node.parent
    return ".".join(reversed(names))


def _joined_name(*segments: str) -> str:
    return ".".join(segment for segment in segments if segment)


def _undeclared(module: NamedModule, name: str, kind: str, known: Iterable[str]) -> str:
    cls = type(module)
    slot = "tensors" if kind == "parameter" else "children"
    return (
        f"{module.path} ({cls.__module__}:{cls.__qualname__}) doesn't say what checkpoints of others call its {kind} "
        f"{name!r}{did_you_mean(name, known)}. Declare it in the layer's Config: foreign: kn.foreign.Names = "
        f'kn.foreign.Names({slot}={{"{name}": "…"}}), or set it in the recipe; see docs/convert.md'
    )
