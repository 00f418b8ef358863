"""Sizes of a config that its mesh doesn't divide, all at once, with their paths and with sizes that would fit.

Which config field sets a parameter's size is found by changing numbers: no layer has to declare it. A number that is
changed and with which the size changes is where the size comes from. That costs a build of the model for each number
tried, and happens only when something doesn't fit.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import kanawa as kn
from kanawa.arrays.axes import MESH_AXES
from kanawa.arrays.rules import Assignment, Rules, assign, assign_param, split_axes
from kanawa.arrays.spec import ParamSpec
from kanawa.arrays.tree import flatten_paths
from kanawa.composition.blame import blamed
from kanawa.contracts import Workload
from kanawa.errors import KanawaError, ShardingError
from kanawa.module import param_specs
from kanawa.plugins import host

from kanawa_parallel.passes import batch_cuts, layers_of_stages

_AXES = "execution.mesh.axes"
#: What a layer may raise that is built with a number it wasn't made for.
_REFUSALS = (KanawaError, ValueError, TypeError, ArithmeticError, LookupError)


class _Dimension(NamedTuple):
    """One dimension of a parameter: its path below the model, and where it stands in its shape."""

    path: str
    position: int


class _Cause(NamedTuple):
    """A logical axis of a size that these mesh axes must divide."""

    axis: str
    size: int
    mesh_axes: tuple[str, ...]


def mesh_problems(config: Workload.Config, model: kn.Module, devices: int, slices: int = 1) -> list[str]:
    """Returns what is wrong with `config.execution` on this many devices, one sentence each; empty without a mesh.

    `model` is what `config.model` builds.
    """
    return [sentence() for sentence in _problems(config, model, devices, slices)]


def mesh_fits(config: Workload.Config, model: kn.Module, devices: int, slices: int = 1) -> bool:
    """Returns whether `mesh_problems` would find nothing, without looking for the fields to blame."""
    return next(_problems(config, model, devices, slices), None) is None


def _problems(config: Workload.Config, model: kn.Module, devices: int, slices: int) -> Iterator[Callable[[], str]]:
    """Yields what makes the sentence of each problem: to find a field to blame takes builds of the model."""
    execution = config.execution
    if execution.mesh is None:
        return
    problems, shape = _mesh_shape(execution.mesh, devices, slices)
    with blamed(execution, "execution"):
        strategies = [strategy.build() for strategy in execution.strategies]
    params: Rules = tuple(rule for s in strategies for rule in s.param_rules())
    activations: Rules = tuple(rule for s in strategies for rule in s.activation_rules())
    problems += _unused(shape, params + activations)
    problems += _order(shape, activations)
    for sentence in problems:
        yield functools.partial(str, sentence)
    parameters: dict[_Cause, list[_Dimension]] = {}
    for cause, dimension in _param_uses(model, params, shape):
        parameters.setdefault(cause, []).append(dimension)
    for cause, dimensions in parameters.items():
        if cause.size % _parts(cause, shape):
            yield functools.partial(_indivisible_parameter, config, cause, shape, dimensions)
    for sentence in (*_uneven_cuts(config, model), *_runs(model, shape.get("stage", 1))):
        yield functools.partial(str, sentence)
    for cause, path in _batch_uses(config, model, activations, shape):
        if cause.size % _parts(cause, shape):
            yield functools.partial(_indivisible, cause, shape, [path])


def _mesh_shape(cfg: Any, devices: int, slices: int) -> tuple[list[str], dict[str, int]]:
    """Returns problems and sizes; if they don't fit the devices, those of the config."""
    try:
        with blamed(cfg, "execution.mesh"):
            return [], dict(cfg.build().shape(devices, slices))
    except KanawaError as error:
        asked: dict[str, int] = {}
        for sizes in (cfg.axes, cfg.dcn_axes):
            for name, size in sizes.items():
                asked[name] = asked.get(name, 1) * max(size, 1)
        return str(error).splitlines(), {name: size for name, size in asked.items() if name in MESH_AXES}


def _unused(shape: Mapping[str, int], rules: Rules) -> list[str]:
    used = {name for _, names in rules for name in names}
    return [
        f"{_AXES}.{name} is {size}, but no strategy in execution.strategies uses {name}: its devices would all do the "
        f"same; add {_strategies_for(name) or 'a strategy that does'}, or leave the axis out"
        for name, size in shape.items()
        if size > 1 and name not in used
    ]


def _strategies_for(mesh_axis: str) -> str:
    """Returns the catalogued strategies that use a mesh axis, and the modifier of the same name where there is one."""
    modifiers = {state.name for state in host().components("modifiers")}
    names = []
    for state, kind in host().loaded("strategies"):
        strategy = kind.Config().build()
        if any(mesh_axis in axes for _, axes in (*strategy.param_rules(), *strategy.activation_rules())):
            names.append(f"{state.name} (--modify {state.name})" if state.name in modifiers else state.name)
    return " or ".join(names)


def _order(shape: Mapping[str, int], activations: Rules) -> list[str]:
    """Returns the problem of a strategy whose split of positions hides the one of tensor parallelism after it."""
    lengths = [names for axis, names in activations if axis == "length"]
    hidden = [names for names in lengths[1:] if "tensor" in names and "tensor" not in lengths[0]]
    if not hidden or shape.get("tensor", 1) == 1:
        return []
    return ["execution.strategies lists tensor after a context strategy, which hides its split of norms; list it first"]


def _param_uses(model: kn.Module, rules: Rules, shape: Mapping[str, int]) -> Iterator[tuple[_Cause, _Dimension]]:
    for path, spec in flatten_paths(param_specs(model)).items():
        if isinstance(spec, ParamSpec):
            assignment = assign_param(spec.shape, spec.axes, rules, shape)
            for index, axis, size, names in _split(spec.shape, spec.axes, assignment):
                yield _Cause(axis, size, names), _Dimension(path, index)


def _runs(model: kn.Module, stages: int) -> Iterator[str]:
    """Yields the problem of layers that a pipelined stack can't deal to its stages."""
    try:
        layers_of_stages(model, stages)
    except ShardingError as error:
        yield str(error)


def _uneven_cuts(config: Workload.Config, model: kn.Module) -> Iterator[str]:
    """Yields the problems of fields that cut a batch in parts which aren't equal."""
    batch = config.batch_shape()
    rows = 0 if batch is None else batch.rows
    for field, count in batch_cuts(config, model):
        if batch is not None and rows % count:
            valid = ", ".join(str(n) for n in range(1, rows + 1) if rows % n == 0)
            yield f"{field} is {count}, which doesn't divide {rows} rows ({batch.rows_path}); it may be {valid}"
        else:
            rows //= count


def _batch_uses(
    config: Workload.Config, model: kn.Module, rules: Rules, shape: Mapping[str, int]
) -> Iterator[tuple[_Cause, str]]:
    """Yields rows (of a microbatch, where batches pass in those) and positions, for workloads that have them."""
    batch = config.batch_shape()
    if batch is None:
        return
    rows, cuts = batch.rows, []
    for field, count in batch_cuts(config, model):
        if count > 1 and rows % count == 0:
            rows //= count
            cuts.append(f"{field} ({count})")
    path = " / ".join([f"{batch.rows_path} ({batch.rows})", *cuts]) if cuts else batch.rows_path
    sizes, axes = (rows, batch.length), ("batch", "length")
    for _, axis, size, names in _split(sizes, axes, assign(split_axes(sizes, axes), rules, shape)):
        yield _Cause(axis, size, names), path if axis == "batch" else batch.length_path


def _split(
    sizes: tuple[int, ...], axes: tuple[str | None, ...], assignment: Assignment
) -> Iterator[tuple[int, str, int, tuple[str, ...]]]:
    """Yields (position, logical axis, size, mesh axes) of the dimensions that a mesh axis splits."""
    for index, (axis, size, names) in enumerate(zip(axes, sizes, assignment, strict=True)):
        if names and axis is not None:
            yield index, axis, size, names


def _parts(cause: _Cause, shape: Mapping[str, int]) -> int:
    return math.prod(shape[name] for name in cause.mesh_axes)


def _indivisible(cause: _Cause, shape: Mapping[str, int], paths: list[str]) -> str:
    axis, size, names = cause
    sizes = " x ".join(f"{name}={shape[name]}" for name in names)
    parts = _parts(cause, shape)
    shown = ", ".join(paths[:2]) + (f" and {len(paths) - 2} more" if len(paths) > 2 else "")
    last = names[-1]
    # The last axis, the fastest, is suggested for change; the sizes of those before it stay.
    others = parts // shape[last]
    valid = [d for d in range(1, size + 1) if size % (d * others) == 0] if size % others == 0 else []
    if axis == "experts" and size < parts:
        what = f"{shown} is {size}, fewer experts than the {parts} expert shards of {sizes}"
    else:
        what = f"{shown}: {axis} is {size}, which {sizes} doesn't divide"
    choices = f"{_AXES}.{last} may be {', '.join(map(str, valid[:12]))}" if valid else f"change {', '.join(names)}"
    return f"{what}; {choices}, or make it a multiple of {parts}"


def _indivisible_parameter(
    config: Workload.Config, cause: _Cause, shape: Mapping[str, int], dimensions: Sequence[_Dimension]
) -> str:
    return _indivisible(cause, shape, _size_fields(config, dimensions))


def _size_fields(config: Workload.Config, dimensions: Sequence[_Dimension]) -> list[str]:
    """Returns the config fields that set these dimensions, which have one size; a parameter's own path if none does."""
    sizes = _sizes(config)
    left, fields = list(dimensions), []
    while left:
        first = left[0]
        field, changed = _source(config, first, sizes[first.path][first.position])
        fields.append(field or f"model.{first.path}")
        # The same number sets most of the others: their sizes have changed with it.
        left = [d for d in left[1:] if not field or d.path not in changed or _same(d, sizes, changed)]
    return list(dict.fromkeys(fields))


def _source(config: Workload.Config, dimension: _Dimension, size: int) -> tuple[str, dict[str, tuple[int, ...]]]:
    """Returns (field, all sizes once it is changed) of the nearest number that sets the dimension; "" if none does."""
    numbers = list(_numbers(config, dimension.path))
    # A number that equals the size is the likeliest; the sort is stable, so among equals the nearest stays first.
    for field, value in sorted(numbers, key=lambda number: number[1] != size):
        # Twice as much keeps what has to divide (heads by groups, widths by heads); one more serves where that is
        # refused.
        changed = _with(config, field, 2 * value) or _with(config, field, value + 1)
        now = changed.get(dimension.path)
        if now is not None and now[dimension.position : dimension.position + 1] != (size,):
            return field, changed
    return "", {}


def _numbers(config: Workload.Config, path: str) -> Iterator[tuple[str, int]]:
    """Yields (config path, value) of the whole numbers in the parameter's module and in all above it, nearest first."""
    segments = f"model.{path}".split(".")[:-1]
    while segments:
        at = ".".join(segments)
        try:
            node = config.get(at)
        except KanawaError:
            node = None
        if isinstance(node, kn.Config):
            for field in node.fields():
                value = getattr(node, field)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    yield f"{at}.{field}", value
        segments.pop()


def _with(config: Workload.Config, field: str, value: int) -> dict[str, tuple[int, ...]]:
    """Returns the parameters' shapes with one field changed; empty where the model refuses that."""
    try:
        changed = config.clone()
        changed.set_path(field, value)
        return _sizes(changed)
    except _REFUSALS:
        return {}


def _sizes(config: Workload.Config) -> dict[str, tuple[int, ...]]:
    flat = flatten_paths(param_specs(config.model.build()))
    return {path: spec.shape for path, spec in flat.items() if isinstance(spec, ParamSpec)}


def _same(dimension: _Dimension, before: dict[str, tuple[int, ...]], after: dict[str, tuple[int, ...]]) -> bool:
    old, new = before[dimension.path], after[dimension.path]
    return old[dimension.position] == new[dimension.position] if len(old) == len(new) else False
