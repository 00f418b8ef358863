"""What of a config doesn't fit its mesh, all at once, before anything compiles: each with its path and what would."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import kanawa as kn
from kanawa.arrays.axes import MESH_AXES
from kanawa.arrays.rules import Rules, resolve, split_axes
from kanawa.arrays.spec import ParamSpec
from kanawa.arrays.tree import flatten_paths
from kanawa.errors import KanawaError
from kanawa.module import param_specs

from kanawa_parallel.pipeline.one_forward_one_backward import OneForwardOneBackward

#: Which config fields give a logical axis its size, the likeliest first.
FIELDS = {
    "heads": ("num_heads",),
    "kv_heads": ("num_kv_heads", "num_heads"),
    "head_dim": ("head_dim",),
    "embed": ("input_dim", "output_dim"),
    "mlp": ("hidden_dim",),
    "vocab": ("vocab_size",),
    "experts": ("num_experts",),
    "layers": ("num_layers",),
}
_AXES = "execution.mesh.axes"


@dataclasses.dataclass(frozen=True)
class _Use:
    """A size that mesh axes must divide, and the config path that sets it."""

    axis: str
    size: int
    mesh_axes: tuple[str, ...]
    path: str


def mesh_problems(config: kn.Config, devices: int, slices: int = 1) -> list[str]:
    """Returns what is wrong with `config.execution` on this many devices, one sentence each; empty without a mesh."""
    execution = config.execution
    if execution.mesh is None:
        return []
    found, shape = _mesh_shape(execution.mesh, devices, slices)
    strategies = [strategy.build() for strategy in execution.strategies]
    params: Rules = tuple(rule for s in strategies for rule in s.param_rules())
    activations: Rules = tuple(rule for s in strategies for rule in s.activation_rules())
    found += _unused(shape, params + activations)
    found += _order(shape, activations)
    uses = dict.fromkeys([*_param_uses(config, params, shape), *_batch_uses(config, activations, shape)])
    by_cause: dict[tuple[str, int, tuple[str, ...]], list[str]] = {}
    for use in uses:
        by_cause.setdefault((use.axis, use.size, use.mesh_axes), []).append(use.path)
    for (axis, size, mesh_axes), paths in by_cause.items():
        parts = math.prod(shape[name] for name in mesh_axes)
        if size % parts:
            found.append(_indivisible(axis, size, mesh_axes, shape, list(dict.fromkeys(paths))))
    return found


def _mesh_shape(cfg: Any, devices: int, slices: int) -> tuple[list[str], dict[str, int]]:
    """Returns problems and sizes; where the sizes don't fit the devices, those that were given."""
    try:
        return [], dict(cfg.build().shape(devices, slices))
    except KanawaError as error:
        given: dict[str, int] = {}
        for sizes in (cfg.axes, cfg.dcn_axes):
            for name, size in sizes.items():
                given[name] = given.get(name, 1) * max(size, 1)
        return str(error).splitlines(), {name: size for name, size in given.items() if name in MESH_AXES}


def _unused(shape: Mapping[str, int], rules: Rules) -> list[str]:
    used = {name for _, names in rules for name in names}
    strategies = {
        "tensor": "tensor",
        "context": "ring, all-gather or ulysses",
        "expert": "expert",
        "stage": "pipeline (--modify pipeline)",
        "fsdp": "fsdp",
    }
    return [
        f"{_AXES}.{name} is {size}, but no strategy in execution.strategies uses {name}: its devices would all do the "
        f"same; add {strategies.get(name, 'data')}, or leave the axis out"
        for name, size in shape.items()
        if size > 1 and name not in used
    ]


def _order(shape: Mapping[str, int], activations: Rules) -> list[str]:
    """Returns the problem of a strategy whose split of positions hides the one of tensor parallelism after it."""
    lengths = [names for axis, names in activations if axis == "length"]
    hidden = [names for names in lengths[1:] if "tensor" in names and "tensor" not in lengths[0]]
    if not hidden or shape.get("tensor", 1) == 1:
        return []
    return ["execution.strategies lists tensor after a context strategy, which hides its split of norms; list it first"]


def _param_uses(config: kn.Config, rules: Rules, shape: Mapping[str, int]) -> Iterator[_Use]:
    for path, spec in flatten_paths(param_specs(config.model.build())).items():
        if isinstance(spec, ParamSpec):
            for axis, size, names in _split(spec.shape, spec.axes, rules, shape):
                yield _Use(axis, size, names, _config_path(config, path, axis, size))


def _batch_uses(config: kn.Config, rules: Rules, shape: Mapping[str, int]) -> Iterator[_Use]:
    """Yields rows (of a microbatch, where batches pass in those) and positions, for workloads that have them."""
    fields = config.fields()
    if "batch_size" not in fields or "data" not in fields:
        return
    rows, cuts = config.batch_size, []
    for field, count in _microbatches(config):
        if count > 1 and rows % count == 0:
            rows //= count
            cuts.append(f"{field} ({count})")
    path = " / ".join([f"batch_size ({config.batch_size})", *cuts]) if cuts else "batch_size"
    length = getattr(config.data, "sequence_length", 1)
    for axis, size, names in _split((rows, length), ("batch", "length"), rules, shape):
        yield _Use(axis, size, names, path if axis == "batch" else "data.sequence_length")


def _microbatches(config: kn.Config) -> Iterator[tuple[str, int]]:
    """Yields the fields that cut a batch, with their counts: accumulation's, then a pipeline's, which 1F1B repeats."""
    if "gradients" in config.fields() and not isinstance(config.gradients, OneForwardOneBackward.Config):
        yield "gradients.microbatches", getattr(config.gradients, "microbatches", 1)
    for path, node in config.model.walk():
        if "microbatches" in node.fields():
            yield f"model.{path}.microbatches", node.microbatches


def _split(
    sizes: tuple[int, ...], axes: tuple[str | None, ...], rules: Rules, shape: Mapping[str, int]
) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    spec = tuple(resolve(split_axes(sizes, axes), rules, shape))
    for axis, size, entry in zip(axes, sizes, spec, strict=False):
        if entry is not None and axis is not None:
            yield axis, size, (entry,) if isinstance(entry, str) else tuple(entry)


def _config_path(config: kn.Config, path: str, axis: str, size: int) -> str:
    """Returns the field that sets a parameter's size, looked for from the parameter upwards, else the parameter."""
    segments = f"model.{path}".split(".")[:-1]
    while segments:
        node = _node(config, ".".join(segments))
        for field in FIELDS.get(axis, ()):
            if node is not None and field in node.fields() and _is(node, field, size):
                return ".".join([*segments, field])
        segments.pop()
    return f"model.{path}"


def _node(config: kn.Config, path: str) -> kn.Config | None:
    try:
        found = config.get(path)
    except KanawaError:
        return None
    return found if isinstance(found, kn.Config) else None


def _is(node: kn.Config, field: str, size: int) -> bool:
    value = getattr(node, field)
    return isinstance(value, int) and value == size


def _indivisible(axis: str, size: int, names: tuple[str, ...], shape: Mapping[str, int], paths: list[str]) -> str:
    sizes = " x ".join(f"{name}={shape[name]}" for name in names)
    parts = math.prod(shape[name] for name in names)
    shown = ", ".join(paths[:2]) + (f" and {len(paths) - 2} more" if len(paths) > 2 else "")
    last = names[-1]
    others = parts // shape[last]
    valid = [d for d in range(1, size + 1) if size % (d * others) == 0] if size % others == 0 else []
    if axis == "experts" and size < parts:
        what = f"{shown} is {size}, fewer experts than the {parts} expert shards of {sizes}"
    else:
        what = f"{shown}: {axis} is {size}, which {sizes} doesn't divide"
    choices = f"{_AXES}.{last} may be {', '.join(map(str, valid[:12]))}" if valid else f"change {', '.join(names)}"
    return f"{what}; {choices}, or make it a multiple of {parts}"
