"""Conformance of a sharding strategy: the same loss and gradients as on one device."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.arrays.shardings import array_sharding, param_shardings
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import BATCH_AXES, Batch, CausalLM, DeviceMesh, Strategy
from kanawa.module import functional, initialize, param_specs


class StrategyConformance:
    """Subclasses return a model, strategies and a mesh over `devices` forced CPU devices; needs jax with that many."""

    devices: ClassVar[int] = 8
    #: Parameters, by path, that must be split in `devices` parts; proves that the strategy does something.
    sharded: ClassVar[tuple[str, ...]] = ()

    def strategies(self) -> tuple[Strategy, ...]:
        """Returns the strategies in order."""
        raise AssertionError("implement strategies() in the conformance class")  # noqa: EM101

    def mesh_axes(self) -> dict[str, int]:
        """Returns the axes of a mesh over `devices`; one size may be -1."""
        raise AssertionError("implement mesh_axes() in the conformance class")  # noqa: EM101

    def model(self) -> CausalLM:
        """Returns a small model to run, with 64 token ids or more; its sizes must divide."""
        raise AssertionError("implement model() in the conformance class")  # noqa: EM101

    def batch(self) -> Batch:
        """Returns a batch of 8 rows with unequal weights."""
        tokens = jax.random.randint(jax.random.key(5), (8, 17), 0, 64)
        batch = Batch.of_tokens(tokens)
        # Unequal sums of weights on each shard: a mean of the shards' means would differ from the batch's.
        weights = (jax.random.uniform(jax.random.key(6), (8, 16)) < 0.7).astype(jnp.float32)
        return batch._replace(loss_weights=weights)

    def plan(self) -> ExecutionPlan:
        """Returns the plan of the strategies."""
        strategies = self.strategies()
        return ExecutionPlan(
            param_rules=tuple(r for s in strategies for r in s.param_rules()),
            activation_rules=tuple(r for s in strategies for r in s.activation_rules()),
            distributed=tuple(way for s in strategies for way in s.distributed()),
        )

    def _loss_and_grads(self, params: Any, batch: Batch) -> tuple[jax.Array, Any]:
        model = self.model()

        def loss(p: Any) -> jax.Array:
            _, outputs = functional(model)(p, {}, batch, key=jax.random.key(0), train=True)
            return outputs.total_loss()

        return jax.value_and_grad(loss)(params)

    def test_loss_and_gradients_equal_one_device(self) -> None:
        if jax.device_count() < self.devices:
            pytest.skip(f"needs {self.devices} devices; this process has {jax.device_count()}")
        model, batch, plan = self.model(), self.batch(), self.plan()
        params = initialize(model, jax.random.key(0))
        expected = jax.jit(self._loss_and_grads)(params, batch)
        mesh = DeviceMesh.Config(axes=self.mesh_axes()).build().mesh(jax.devices()[: self.devices])
        with jax.set_mesh(mesh), use_plan(plan):
            shardings = param_shardings(param_specs(model), plan.param_rules, mesh)
            placed = jax.device_put(params, shardings)
            rows = array_sharding(batch.input_ids.shape, BATCH_AXES.input_ids, plan.activation_rules, mesh, "batch")
            split = jax.tree.map(lambda x: jax.device_put(x, rows), batch)
            split_result = jax.jit(self._loss_and_grads)(placed, split)
        np.testing.assert_allclose(split_result[0], expected[0], rtol=1e-5)
        for path, grad in flatten_paths(split_result[1]).items():
            wanted = flatten_paths(expected[1])[path]
            np.testing.assert_allclose(grad, wanted, rtol=1e-4, atol=1e-6, err_msg=path)
        for path in self.sharded:
            array = flatten_paths(placed)[path]
            assert array.addressable_shards[0].data.size * self.devices == array.size, path
