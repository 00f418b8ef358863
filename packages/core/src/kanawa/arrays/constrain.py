"""`constrain`: a layer says what an activation's axes mean; the plan in force says where they live."""

import jax
from jax.sharding import AxisType

from kanawa.arrays.axes import LogicalAxes
from kanawa.arrays.plan import current_plan
from kanawa.arrays.rules import Rules, assign, check_divides, partition, split_axes
from kanawa.errors import ShardingError


def auto_mesh_shape() -> dict[str, int]:
    """Returns {axis: size} of the context mesh, without axes that an enclosing shard_map has made manual."""
    mesh = jax.sharding.get_abstract_mesh()
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
    return _constrain(x, axes, current_plan().activation_rules, "activation")


def constrain_param(x: jax.Array, axes: LogicalAxes, path: str) -> jax.Array:
    """Returns a parameter constrained to its stored sharding, so that a cast happens before any gather."""
    return _constrain(x, axes, current_plan().param_rules, path)


def _constrain(x: jax.Array, axes: LogicalAxes, rules: Rules, what: str) -> jax.Array:
    if not rules:
        return x
    mesh_shape = auto_mesh_shape()
    if not mesh_shape:
        return x
    if len(axes) != x.ndim:
        message = f"{what}: array of shape {x.shape} has {x.ndim} dimensions but axes {axes} name {len(axes)}"
        raise ShardingError(message)
    axes = split_axes(x.shape, axes)
    assignment = assign(axes, rules, mesh_shape)
    check_divides(x.shape, axes, assignment, mesh_shape, what)
    return jax.lax.with_sharding_constraint(x, partition(assignment))
