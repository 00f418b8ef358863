"""Sizes of a config that its mesh doesn't divide, all at once, with their paths and with sizes that would fit."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import kanawa as kn
from kanawa.arrays.axes import MESH_AXES
from kanawa.arrays.rules import Assignment, Rules, assign, assign_param, split_axes
from kanawa.arrays.spec import ParamSpec
from kanawa.arrays.tree import flatten_paths
from kanawa.composition.blame import blamed
from kanawa.contracts import Workload
from kanawa.errors import KanawaError
from kanawa.module import param_specs
from kanawa.plugins import host

from kanawa_parallel.passes import batch_cuts
from kanawa_parallel.sources import Dimension, size_fields

_AXES = "execution.mesh.axes"


class _Cause(NamedTuple):
    """A logical axis of a size that these mesh axes must divide."""

    axis: str
    size: int
    mesh_axes: tuple[str, ...]


def mesh_problems(config: Workload.Config, model: kn.Module, devices: int, slices: int = 1) -> list[str]:
    """Returns what is wrong with `config.execution` on this many devices, one sentence each; empty without a mesh.

    `model` is what `config.model` builds.
    """
    execution = config.execution
    if execution.mesh is None:
        return []
    problems, shape = _mesh_shape(execution.mesh, devices, slices)
    with blamed(execution, "execution"):
        strategies = [strategy.build() for strategy in execution.strategies]
    params: Rules = tuple(rule for s in strategies for rule in s.param_rules())
    activations: Rules = tuple(rule for s in strategies for rule in s.activation_rules())
    problems += _unused(shape, params + activations)
    problems += _order(shape, activations)
    parameters: dict[_Cause, list[Dimension]] = {}
    for cause, dimension in _param_uses(model, params, shape):
        parameters.setdefault(cause, []).append(dimension)
    for cause, dimensions in parameters.items():
        if cause.size % _parts(cause, shape):
            problems.append(_indivisible(cause, shape, size_fields(config, dimensions)))
    for cause, path in _batch_uses(config, model, activations, shape):
        if cause.size % _parts(cause, shape):
            problems.append(_indivisible(cause, shape, [path]))
    return problems


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
    for state in host().components("strategies"):
        if state.state.usable:
            strategy = kn.component("strategies", state.key).Config().build()
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


def _param_uses(model: kn.Module, rules: Rules, shape: Mapping[str, int]) -> Iterator[tuple[_Cause, Dimension]]:
    for path, spec in flatten_paths(param_specs(model)).items():
        if isinstance(spec, ParamSpec):
            assignment = assign_param(spec.shape, spec.axes, rules, shape)
            for index, axis, size, names in _split(spec.shape, spec.axes, assignment):
                yield _Cause(axis, size, names), Dimension(path, index)


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
