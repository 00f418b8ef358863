"""Tensor parallelism in the compiled program: no shard ever holds the whole vocabulary's logits or table."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from kanawa.arrays.constrain import constrain
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.arrays.rules import resolve
from kanawa.kernels.softmax_cross_entropy import softmax_cross_entropy
from kanawa_parallel.modifiers import strategies_for

ROWS, LENGTH, WIDTH, VOCAB = 8, 16, 32, 512
AXES = {"fsdp": 2, "tensor": 4}


def plan():
    found = [strategy.build() for strategy in strategies_for(AXES)]
    return ExecutionPlan(
        param_rules=tuple(r for s in found for r in s.param_rules()),
        activation_rules=tuple(r for s in found for r in s.activation_rules()),
    )


def loss(table, ids, targets):
    """Looks tokens up in a table and predicts with the same one, in chunks of 16 tokens a shard."""
    x = constrain(jnp.tanh(jnp.take(table, ids, axis=0)), ("batch", "length", "embed"))
    total, count, _ = softmax_cross_entropy(
        x, table, targets, jnp.ones(targets.shape), tied=True, chunk_tokens=16, z_loss=0.1, label_smoothing=0.1
    )
    return total / count


@pytest.fixture(scope="module")
def operands():
    rng = np.random.default_rng(0)
    table = (0.3 * rng.standard_normal((VOCAB, WIDTH))).astype(np.float32)
    return table, *rng.integers(0, VOCAB, (2, ROWS, LENGTH)).astype(np.int32)


def test_vocabulary_stays_split_from_lookup_to_loss(operands):
    value, grad = jax.jit(jax.value_and_grad(loss))(*operands)
    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES), axis_types=(AxisType.Auto,) * 2)
    split = NamedSharding(mesh, resolve(("vocab", "embed"), plan().param_rules, AXES))
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    assert split.spec == PartitionSpec("tensor", "fsdp")
    placed = [jax.device_put(x, where) for x, where in zip(operands, (split, rows, rows), strict=True)]
    with jax.set_mesh(mesh), use_plan(plan()):
        program = jax.jit(jax.value_and_grad(loss)).lower(*placed).compile()
    found, gradient = program(*placed)
    np.testing.assert_allclose(found, value, rtol=1e-5)
    np.testing.assert_allclose(gradient, grad, atol=1e-5 * float(jnp.max(jnp.abs(grad))))
    shapes = {tuple(map(int, dims.split(","))) for dims in re.findall(r"f32\[([\d,]+)\]", program.as_text())}
    assert not [shape for shape in shapes if VOCAB in shape]
    # The largest array anywhere: a shard's tokens at model width, of which the loss gathers the length.
    assert max(map(math.prod, shapes)) <= max(ROWS // 2 * LENGTH * WIDTH * 2, VOCAB // 4 * WIDTH)


def test_one_token_stays_whole():
    """A decoded token has length 1, which nothing divides: it isn't split."""
    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh), use_plan(plan()):
        x = jax.jit(lambda x: constrain(x, ("batch", "length", "embed")))(jnp.ones((8, 1, 4)))
    assert x.sharding.spec == PartitionSpec("fsdp")
