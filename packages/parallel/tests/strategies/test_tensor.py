"""Tensor parallelism: what its rules leave whole."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
from kanawa.arrays.constrain import constrain
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa_parallel.modifiers import strategies_for

AXES = {"fsdp": 2, "tensor": 4}


def test_one_token_stays_whole():
    """A decoded token has length 1, which nothing divides: it isn't split."""
    rules = tuple(rule for one in strategies_for(AXES) for rule in one.build().activation_rules())
    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh), use_plan(ExecutionPlan(activation_rules=rules)):
        x = jax.jit(lambda x: constrain(x, ("batch", "length", "embed")))(jnp.ones((8, 1, 4)))
    assert x.sharding.spec == PartitionSpec("fsdp")
