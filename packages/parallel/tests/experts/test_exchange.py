"""Rows reach the shard of their expert and come back to their place, whatever the load."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from kanawa.contracts import TokenDispatcher
from kanawa_parallel.experts.exchange import through_shards
from kanawa_parallel.strategies.expert import ExpertParallel

SHARDS, EXPERTS, WIDTH, ROWS = 4, 8, 3, 12


def scaled(rows, group_sizes):
    """Multiplies each row by its expert's number, as this shard counts its own: 1, 2, …"""
    number = jnp.repeat(jnp.arange(1, group_sizes.shape[0] + 1), group_sizes, total_repeat_length=rows.shape[0])
    return rows * number[:, None].astype(rows.dtype)


def load(kind):
    rng = np.random.default_rng(3)
    ids = {"any": rng.integers(0, EXPERTS, (SHARDS, ROWS)), "one expert": np.full((SHARDS, ROWS), 5)}[kind]
    return np.sort(ids, axis=1)


class Shards(kn.Module):
    """Each shard's rows through the experts of all shards."""

    def forward(self, rows, sizes):
        split = PartitionSpec("expert")
        spread = through_shards(scaled, "expert", None)
        return kn.shard_map(spread, in_specs=(split, split), out_specs=split, axis_names=("expert",))(rows, sizes)


@pytest.mark.parametrize("kind", ["any", "one expert"])
def test_every_row_goes_through_its_expert_and_back(kind):
    """If all rows go to one expert, its shard takes them in three rounds."""
    ids = load(kind)
    sizes = np.stack([np.bincount(row, minlength=EXPERTS) for row in ids]).astype(np.int32)
    rows = np.random.default_rng(1).normal(size=(SHARDS * ROWS, WIDTH)).astype(np.float32)
    mesh = jax.make_mesh((SHARDS,), ("expert",), devices=jax.devices()[:SHARDS], axis_types=(AxisType.Auto,))
    call = kn.functional(Shards.Config().build())

    def loss(rows, sizes):
        out, _ = call({}, {}, rows, sizes)
        return jnp.sum(jnp.sin(out)), out

    with jax.set_mesh(mesh):
        grad, out = jax.jit(jax.grad(loss, has_aux=True))(rows, sizes.reshape(-1))
    number = (ids.reshape(-1, 1) % (EXPERTS // SHARDS) + 1).astype(np.float32)
    np.testing.assert_allclose(out, rows * number, rtol=1e-6)
    np.testing.assert_allclose(grad, np.cos(rows * number) * number, rtol=1e-5, atol=1e-6)


class Dispatcher(TokenDispatcher):
    """Sorts the one choice of each token by expert."""

    def dispatch(self, x, expert_ids):
        order = jnp.argsort(expert_ids[:, 0], stable=True)
        sizes = jnp.bincount(expert_ids[:, 0], length=self.config.num_experts).astype(jnp.int32)
        return jnp.take(x, order, axis=0), sizes, order

    def combine(self, rows, weights, plan):
        return jnp.take(rows, jnp.argsort(plan), axis=0) * weights


class Experts(kn.Module):
    """One scale an expert."""

    def setup(self):
        self.add_param("scale", (EXPERTS,), axes=("experts",), init=kn.ones)

    def forward(self, rows, group_sizes):
        scale = jnp.repeat(self.param("scale"), group_sizes, total_repeat_length=rows.shape[0])
        return rows * scale[:, None]


class Mixture(kn.Module):
    """Sends every token to expert 0."""

    class Config(kn.Module.Config):
        dispatcher: TokenDispatcher.Config = Dispatcher.Config()
        experts: Experts.Config = Experts.Config()

    def setup(self):
        self.add_child("dispatcher", self.config.dispatcher, num_experts=EXPERTS)
        self.add_child("experts", self.config.experts)

    def forward(self, x):
        ids = jnp.zeros((*x.shape[:2], 1), jnp.int32)
        return self.dispatcher.through(self.experts, x, ids, jnp.ones(ids.shape))


def test_a_capacity_drops_rows_and_says_how_many():
    module = Mixture.Config().build()
    params = kn.initialize(module, jax.random.key(0))
    strategy = ExpertParallel.Config(capacity_factor=2.0).build()
    plan = kn.ExecutionPlan(activation_rules=strategy.activation_rules(), distributed=strategy.distributed())
    mesh = jax.make_mesh((SHARDS,), ("expert",), devices=jax.devices()[:SHARDS], axis_types=(AxisType.Auto,))
    x = jnp.ones((SHARDS, 6, WIDTH))
    with jax.set_mesh(mesh), kn.use_plan(plan):
        y, outputs = jax.jit(kn.functional(module))(params, {}, x)
    # Shard 0 has room for 2 x 6 of the 24 rows: those of the first two shards.
    np.testing.assert_array_equal(y[:, 0, 0], [1, 1, 0, 0])
    dropped = outputs.metrics["dropped_rows"]
    assert (float(dropped.total), float(dropped.weight)) == (12.0, 24.0)
