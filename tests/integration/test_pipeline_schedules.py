"""Every pipeline schedule gives a small Llama's loss and gradients of one device, its vocabulary split over stages."""

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.arrays.shardings import param_shardings
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Batch, DeviceMesh, ModelLoss, Stack
from kanawa.module import param_specs
from kanawa_parallel.modifiers import strategies_for
from kanawa_parallel.strategies.pipeline import Pipeline

ROWS, LENGTH, VOCAB, LAYERS = 8, 16, 48, 4
CASES = [
    pytest.param("zero-bubble", 1, {"stage": 2, "fsdp": 2}),
    pytest.param("dualpipe", 2, {"stage": 2, "tensor": 2}),
    *[
        pytest.param(name, rounds, axes, marks=pytest.mark.nightly)
        for name, rounds in (("gpipe", 1), ("interleaved", 2), ("1f1b", 2), ("zero-bubble", 2), ("dualpipe", 2))
        for axes in ({"stage": 2, "fsdp": 2}, {"stage": 2, "tensor": 2, "fsdp": 2}, {"stage": 4})
    ],
]


def llama():
    cfg = kn.component("models", "llama-tiny")()
    cfg.set(vocab_size=VOCAB, input_dim=32)
    cfg.stack.set(num_layers=LAYERS)
    cfg.stack.layer.attention.set(num_heads=4, num_kv_heads=2)
    cfg.stack.layer.feed_forward.set(hidden_dim=64)
    return cfg


def batch():
    tokens = np.random.default_rng(0).integers(0, VOCAB, (ROWS, LENGTH + 1)).astype(np.int32)
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (ROWS, LENGTH))
    weights = np.ones((ROWS, LENGTH), np.float32)
    weights[2, 5:] = 0
    return Batch(tokens[:, :-1], tokens[:, 1:], positions, np.ones_like(positions), weights)


@pytest.mark.parametrize(("schedule", "rounds", "axes"), CASES)
def test_loss_and_gradients_equal_one_device(schedule, rounds, axes):
    plain, rows = llama().freeze().build(), batch()
    params = kn.initialize(plain, jax.random.key(0))

    def total(loss, p, b):
        outputs = loss(p, {}, b, jax.random.key(0))
        return outputs.total_loss(), outputs

    wanted, outputs = jax.jit(jax.grad(lambda p, b: total(ModelLoss(plain), p, b), has_aux=True))(params, rows)

    parts = kn.component("pipelines", schedule)(4, rounds)
    cfg = llama()
    kn.replace(cfg, target=Stack, new=parts.stack)
    model = cfg.freeze().build()
    strategies = [Pipeline.Config().build(), *(s.build() for s in strategies_for(axes))]
    plan = ExecutionPlan(
        param_rules=tuple(rule for s in strategies for rule in s.param_rules()),
        activation_rules=tuple(rule for s in strategies for rule in s.activation_rules()),
    )

    def gradients(p, b):
        if parts.gradients is None:
            return jax.grad(lambda p: total(ModelLoss(model), p, b), has_aux=True)(p)
        return parts.gradients.build().gradients(ModelLoss(model), p, {}, b, jax.random.key(0))

    mesh = DeviceMesh.Config(axes=axes).build().mesh(jax.devices()[: int(np.prod(list(axes.values())))])
    with jax.set_mesh(mesh), use_plan(plan):
        placed = jax.device_put(params, param_shardings(param_specs(model), plan.param_rules, mesh))
        shards = axes["stage"] * axes.get("tensor", 1)
        assert placed["embedding"]["weight"].addressable_shards[0].data.shape[0] == VOCAB // shards
        found, said = jax.jit(gradients)(placed, rows)
    np.testing.assert_allclose(said.total_loss(), outputs.total_loss(), rtol=1e-5)
    for path, grad in flatten_paths(found).items():
        expected = flatten_paths(wanted)[path]
        np.testing.assert_allclose(grad, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max(), err_msg=path)
