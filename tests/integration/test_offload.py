"""Optimizer state and activations in host memory give the updates of a run that keeps everything on the devices."""

import jax
import numpy as np
from kanawa.arrays.tree import flatten_paths
from kanawa.composition import compose
from kanawa.composition.environment import environment
from kanawa.contracts import Batch


def two_updates(*modifiers):
    """Returns the state after two steps of a small Llama on eight CPU devices."""
    sizes = ["model.input_dim=32", "model.vocab_size=2048", "model.stack.num_layers=2", "batch_size=8"]
    sizes += ["model.stack.layer.attention.num_heads=4", "model.stack.layer.feed_forward.hidden_dim=64"]
    sizes += ["data.sequence_length=16"]
    composition = compose("quickstart", "cpu-8", modifiers, sizes)
    where = environment(composition)
    programs = composition.workload().programs(where)
    tokens = np.random.default_rng(0).integers(0, 64, (8, 17)).astype(np.int32)
    ones = np.ones((8, 16), np.int32)
    batch = Batch(tokens[:, :-1], tokens[:, 1:], np.arange(16, dtype=np.int32)[None] * ones, ones, ones * 1.0)
    step = programs["train_step"]
    placed = jax.tree.map(
        lambda x, spec: jax.device_put(x.astype(spec.dtype), spec.sharding), batch, step.abstract_args[1]
    )
    with where.active():
        state = programs["init"].jitted()()
        compiled = step.lower().compile()
        for _ in range(2):
            state, _ = compiled(state, placed)
    return state


def test_offloaded_runs_equal_plain_ones():
    plain = two_updates()
    moved = two_updates("offload-optimizer", "remat:policy=offload-qkv-and-output")
    kinds = {name: x.sharding.memory_kind for name, x in moved.opt.items() if x.ndim}
    assert set(kinds.values()) == {"pinned_host"}
    assert len(kinds) > 10
    wanted = flatten_paths(plain.params)
    for path, value in flatten_paths(moved.params).items():
        assert value.sharding.memory_kind == "device"
        # Sums over shards come in another order where state is split by dimension.
        np.testing.assert_allclose(value, wanted[path], rtol=1e-5, atol=2e-6, err_msg=path)
