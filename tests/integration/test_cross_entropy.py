"""Cross entropy with all packages at once: split over the vocabulary, and by a backend's matmuls."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from kanawa.arrays.constrain import constrain
from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, use_plan
from kanawa.arrays.rules import resolve
from kanawa.kernels.softmax_cross_entropy import softmax_cross_entropy
from kanawa_backends_cpu.kernels.matmul.available import why_no_native, why_no_onednn
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


@pytest.mark.skipif(bool(why_no_native() or why_no_onednn("bfloat16")), reason="no native matmul on this processor")
@pytest.mark.parametrize("tied", [False, True])
def test_logits_in_chunks_and_their_gradients_are_native_calls(tied):
    rng = np.random.default_rng(7)
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)  # noqa: E731
    hidden, weight, weights = normal(1024, 512), normal(256, 512) if tied else normal(512, 256), jnp.ones(1024)
    targets = (jnp.arange(1024, dtype=jnp.int32) * 7) % 256

    def gradients(plan):
        def loss(hidden, weight):
            return softmax_cross_entropy(hidden, weight, targets, weights, tied=tied, chunk_tokens=600)[0]

        with use_plan(plan):
            lowered = jax.jit(jax.grad(loss, (0, 1))).lower(hidden, weight)
            return lowered.as_text().count("custom_call @kanawa_matmul"), lowered.compile()(hidden, weight)

    calls, ours = gradients(ExecutionPlan())
    none, right = gradients(ExecutionPlan(kernels=KernelPolicy(pins=(("matmul", "matmul.any.xla"),))))
    assert (calls, none) == (3, 0)
    for mine, want in zip(ours, right, strict=True):
        np.testing.assert_allclose(mine, want, rtol=1e-3, atol=1e-4)
