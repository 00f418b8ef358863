"""`constrain`: a layer names an activation's axes; the active plan maps them to the mesh."""

import jax
from jax.sharding import AxisType

from kanawa.arrays.axes import LogicalAxes
from kanawa.arrays.plan import current_plan
from kanawa.arrays.rules import assign, assign_param, check_divides, partition, split_axes
from kanawa.errors import ShardingError


def auto_mesh_shape() -> dict[str, int]:
    """Returns {axis: size} of the context mesh, without axes that an enclosing shard_map has made manual."""
    mesh = jax.sharding.get_abstract_mesh()
    # Without a mesh nothing is placed: the same layers run in a test of one device.
    if mesh is None or mesh.empty:
        return {}
    return {
        name: size
        for name, size, kind in zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
        if kind != AxisType.Manual
    }


def constrain(x: jax.Array, axes: LogicalAxes) -> jax.Array:
    """Returns `x` constrained to the sharding of its logical axes; `x` itself without a mesh.

    Raises ShardingError where a dimension doesn't divide.
    """
    rules = current_plan().activation_rules
    mesh_shape = auto_mesh_shape()
    if not rules or not mesh_shape:
        return x
    _check_axes(x, axes, "activation")
    assignment = assign(split_axes(x.shape, axes), rules, mesh_shape)
    check_divides(x.shape, axes, assignment, mesh_shape, "activation")
    out: jax.Array = jax.lax.with_sharding_constraint(x, partition(assignment))
    return out


def constrain_param(x: jax.Array, axes: LogicalAxes, path: str) -> jax.Array:
    """Returns a parameter constrained to its stored sharding, so that a cast happens before any gather."""
    rules = current_plan().param_rules
    mesh_shape = auto_mesh_shape()
    if not rules or not mesh_shape:
        return x
    _check_axes(x, axes, path)
    assignment = assign_param(x.shape, axes, rules, mesh_shape)
    check_divides(x.shape, axes, assignment, mesh_shape, path)
    out: jax.Array = jax.lax.with_sharding_constraint(x, partition(assignment))
    return out


def _check_axes(x: jax.Array, axes: LogicalAxes, what: str) -> None:
    if len(axes) != x.ndim:
        message = f"{what}: array of shape {x.shape} has {x.ndim} dimensions but axes {axes} name {len(axes)}"
        raise ShardingError(message)
