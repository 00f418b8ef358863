"""Every composition of strategies gives the loss and the gradients of one device: dense and mixture, rows packed."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.arrays.shardings import array_sharding, param_shardings, replicated
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import BATCH_AXES, Batch, DeviceMesh
from kanawa.module import param_specs
from kanawa_parallel.modifiers import strategies_for
from kanawa_parallel.strategies.all_gather import AllGatherAttention
from kanawa_parallel.strategies.ring import RingAttention
from kanawa_parallel.strategies.ulysses import UlyssesAttention

ROWS, LENGTH, VOCAB = 8, 32, 64

#: Compositions run every time: between them every axis and every way to split a sequence.
QUICK = {
    "fsdp2 x tensor2 x context2": ({"fsdp": 2, "tensor": 2, "context": 2}, RingAttention),
    "expert4 x fsdp2": ({"expert": 4, "fsdp": 2}, None),
}
FULL = {
    "data8": ({"data": 8}, None),
    "fsdp8": ({"fsdp": 8}, None),
    "replica2 x fsdp4": ({"replica": 2, "fsdp": 4}, None),
    "tensor2": ({"tensor": 2}, None),
    "context8 by ring": ({"context": 8}, RingAttention),
    "context8 by gathering": ({"context": 8}, AllGatherAttention),
    "context2 by ulysses": ({"context": 2}, UlyssesAttention),
    "expert8": ({"expert": 8}, None),
    "fsdp4 x tensor2": ({"fsdp": 4, "tensor": 2}, None),
    "data2 x fsdp2 x tensor2": ({"data": 2, "fsdp": 2, "tensor": 2}, None),
    "context4 x fsdp2": ({"context": 4, "fsdp": 2}, RingAttention),
    "context4 x fsdp2 by gathering": ({"context": 4, "fsdp": 2}, AllGatherAttention),
    "context2 x tensor2 x fsdp2 by ulysses": ({"context": 2, "tensor": 2, "fsdp": 2}, UlyssesAttention),
    "replica2 x fsdp2 x context2": ({"replica": 2, "fsdp": 2, "context": 2}, RingAttention),
    "tensor2 x expert2 x fsdp2": ({"tensor": 2, "expert": 2, "fsdp": 2}, None),
    "fsdp2 x expert2 x context2": ({"fsdp": 2, "expert": 2, "context": 2}, RingAttention),
}
CASES = [
    *[pytest.param(name, kind, *QUICK[name]) for name, kind in zip(QUICK, ("dense", "mixture"), strict=True)],
    *[
        pytest.param(name, kind, *case, marks=pytest.mark.nightly)
        for name, case in (QUICK | FULL).items()
        for kind in ("dense", "mixture")
        if (name, kind) not in zip(QUICK, ("dense", "mixture"), strict=True)
    ],
]


def model(kind):
    """Returns a small Llama, with eight experts a layer for "mixture"."""
    cfg = kn.component("models", "llama-tiny")()
    cfg.set(vocab_size=VOCAB, input_dim=32)
    cfg.stack.set(num_layers=2)
    cfg.stack.layer.attention.set(num_heads=4, num_kv_heads=2)
    cfg.stack.layer.feed_forward.set(hidden_dim=64)
    if kind == "mixture":
        cfg = kn.component("modifiers", "moe").Config(num_experts=8, top_k=2).build()(cfg)
    return cfg.freeze().build()


def packed_batch():
    """Returns rows of two or three segments and padding, with some tokens that predict nothing."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (ROWS, LENGTH + 1)).astype(np.int32)
    segments, positions = np.zeros((2, ROWS, LENGTH), np.int32)
    for row in range(ROWS):
        cuts = [0, *sorted(rng.choice(np.arange(3, LENGTH - 3), 2, replace=False)), LENGTH - row % 4]
        for number, (start, stop) in enumerate(zip(cuts[:-1], cuts[1:], strict=True)):
            segments[row, start:stop] = number + 1
            positions[row, start:stop] = np.arange(stop - start)
    weights = ((segments > 0) & (rng.uniform(size=segments.shape) < 0.8)).astype(np.float32)
    return Batch(tokens[:, :-1], tokens[:, 1:], positions, segments, weights)


def loss_and_gradients(module, params, batch):
    def loss(p):
        outputs = kn.functional(module)(p, {}, batch, key=jax.random.key(0), train=True)[1]
        return outputs.total_loss()

    return jax.value_and_grad(loss)(params)


@functools.cache
def one_device(kind):
    """Returns a kind of model, its parameters, and what one device computes."""
    module = model(kind)
    params = jax.jit(lambda key: kn.initialize(module, key))(jax.random.key(0))
    batch = jax.tree.map(jnp.asarray, packed_batch())
    return module, params, jax.jit(lambda p, b: loss_and_gradients(module, p, b))(params, batch)


@pytest.mark.parametrize(("name", "kind", "axes", "way"), CASES)
def test_loss_and_gradients_equal_one_device(name, kind, axes, way):
    compare(name, kind, axes, way)


def test_two_processes_with_four_devices_each(tmp_path):
    """The same over a gang: fsdp between the processes, context and tensor inside each."""
    from ports import free_port  # the gang's processes run this file, and have no such folder on their path

    address = f"127.0.0.1:{free_port()}"
    flags = os.environ["XLA_FLAGS"].replace("count=8", "count=4")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    commands = [[sys.executable, __file__, address, str(index)] for index in range(2)]
    gang = [subprocess.Popen(c, env=environment, stderr=subprocess.PIPE, text=True, cwd=tmp_path) for c in commands]
    errors = [process.communicate(timeout=500)[1] for process in gang]
    assert [process.returncode for process in gang] == [0, 0], "\n".join(errors)


def compare(name, kind, axes, way):
    """Raises AssertionError where loss or a gradient on a mesh over all processes differs from one device's."""
    module, params, (loss, grads) = one_device(kind)
    chosen = strategies_for(axes)
    strategies = [(way.Config() if way and isinstance(c, RingAttention.Config) else c).build() for c in chosen]
    devices = jax.devices()[: int(np.prod(list(axes.values())))]
    mesh = DeviceMesh.Config(axes=axes).build().mesh(devices)
    plan = ExecutionPlan(
        param_rules=tuple(r for s in strategies for r in s.param_rules()),
        activation_rules=tuple(r for s in strategies for r in s.activation_rules()),
        distributed=tuple(d for s in strategies for d in s.distributed()),
    )
    with jax.set_mesh(mesh), use_plan(plan):
        placed = jax.device_put(params, param_shardings(param_specs(module), plan.param_rules, mesh))
        rows = array_sharding((ROWS, LENGTH), BATCH_AXES.input_ids, plan.activation_rules, mesh, "batch")
        batch = jax.tree.map(lambda x: jax.device_put(x, rows), packed_batch())
        whole = replicated(mesh) if jax.process_count() > 1 else None
        found = jax.jit(lambda p, b: loss_and_gradients(module, p, b), out_shardings=whole)(placed, batch)
    np.testing.assert_allclose(found[0], loss, rtol=1e-5)
    wanted = flatten_paths(grads)
    for path, grad in flatten_paths(found[1]).items():
        scale = float(jnp.max(jnp.abs(wanted[path])))
        np.testing.assert_allclose(grad, wanted[path], atol=1e-5 * scale, rtol=0, err_msg=f"{name}: {path}")


if __name__ == "__main__":
    jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
    assert jax.device_count() == 8
    compare("gang", "dense", *QUICK["fsdp2 x tensor2 x context2"])
