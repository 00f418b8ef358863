"""Shardings of whole parameter trees, derived from their specs, the plan's rules and a mesh."""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from kanawa.arrays.axes import LogicalAxes
from kanawa.arrays.rules import Rules, assign, assign_param, check_divides, partition, split_axes
from kanawa.arrays.spec import ParamSpec
from kanawa.arrays.tree import map_paths


def array_sharding(
    shape: tuple[int, ...], axes: LogicalAxes, rules: Rules, mesh: Mesh | AbstractMesh, what: str
) -> NamedSharding:
    """Returns the sharding of one array; raises ShardingError, naming `what`, where it doesn't divide."""
    axes = split_axes(shape, axes)
    assignment = assign(axes, rules, mesh.shape)
    check_divides(shape, axes, assignment, mesh.shape, what)
    return NamedSharding(mesh, partition(assignment))


def param_sharding(spec: ParamSpec, rules: Rules, mesh: Mesh | AbstractMesh, path: str) -> NamedSharding:
    """Returns the sharding of a parameter; raises ShardingError for a large one that no rule's axis divides."""
    assignment = assign_param(spec.shape, spec.axes, rules, mesh.shape)
    check_divides(spec.shape, spec.axes, assignment, mesh.shape, path)
    return NamedSharding(mesh, partition(assignment))


def param_shardings(specs: Mapping[str, Any], rules: Rules, mesh: Mesh | AbstractMesh) -> dict[str, Any]:
    """Returns the tree of NamedShardings of a tree of ParamSpecs."""

    def one(path: str, spec: ParamSpec) -> NamedSharding:
        sharding = param_sharding(spec, rules, mesh, path)
        # Named only where it differs: platforms call their own memory differently, and some have but one.
        return sharding if spec.memory == "device" else sharding.with_memory_kind(spec.memory)

    return map_paths(one, specs)


def abstract_params(
    specs: Mapping[str, Any], rules: Rules = (), mesh: Mesh | AbstractMesh | None = None
) -> dict[str, Any]:
    """Returns the tree of ShapeDtypeStructs, with shardings where there is a mesh."""
    if mesh is None:
        return map_paths(lambda _, spec: spec.abstract(), specs)
    return map_paths(lambda path, spec: spec.abstract(param_sharding(spec, rules, mesh, path)), specs)


def replicated(mesh: Mesh | AbstractMesh) -> jax.sharding.NamedSharding:
    """Returns the sharding of an array that every device holds whole."""
    return NamedSharding(mesh, jax.sharding.PartitionSpec())
