"""Pipelines give the single device's loss and gradients, keep fewer inputs where they promise to, and decode."""

import functools
import math

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.arrays.shardings import param_shardings
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Batch, DeviceMesh, ModelLoss, Sequences
from kanawa.errors import ConfigError, ShardingError
from kanawa.module import param_specs
from kanawa_parallel.pipeline.dualpipe import dualpipe
from kanawa_parallel.pipeline.modifier import one_forward_one_backward, zero_bubble
from kanawa_parallel.pipeline.one_forward_one_backward import OneForwardOneBackward
from kanawa_parallel.pipeline.stack import PipelinedStack
from kanawa_parallel.remat.policies import FullRemat
from kanawa_parallel.strategies.fsdp import FSDP
from kanawa_parallel.strategies.pipeline import Pipeline
from stacked_model import StackedLM, SumBlock
from tiny_lm import TinyLM

ROWS, LENGTH = 8, 6
STRATEGIES = (Pipeline.Config().build(), FSDP.Config().build())
PLAN = ExecutionPlan(
    param_rules=tuple(r for s in STRATEGIES for r in s.param_rules()),
    activation_rules=tuple(r for s in STRATEGIES for r in s.activation_rules()),
)


def model(microbatches=4, rounds=1, num_layers=8, remat=None, runs=()):
    stack = PipelinedStack.Config(
        num_layers=num_layers,
        layer=SumBlock.Config(),
        microbatches=microbatches,
        rounds=rounds,
        layers_of_runs=runs,
        remat=remat,
    )
    return StackedLM.Config(stack=stack).build()


@functools.cache
def params_of(num_layers):
    return kn.initialize(model(num_layers=num_layers), jax.random.key(0))


PARAMS = params_of(8)


def batch(rows=ROWS, length=LENGTH):
    tokens = jax.random.randint(jax.random.key(1), (rows, length + 1), 0, 32)
    half = length // 2
    segments = jnp.concatenate([jnp.ones((rows, half), jnp.int32), jnp.full((rows, length - half), 2)], 1)
    positions = jnp.concatenate([jnp.arange(half), jnp.arange(length - half)])[None].repeat(rows, 0)
    weights = jnp.ones((rows, length)).at[:3].set(0).at[5, 2:].set(0)
    return Batch(tokens[:, :-1], tokens[:, 1:], positions, segments, weights)


def whole(params, rows):
    num_layers = len(params["stack"]["layer"]["kernel"])

    def total(p):
        outputs = ModelLoss(model(num_layers=num_layers))(p, {}, rows, jax.random.key(0))
        return outputs.total_loss(), outputs

    return jax.grad(total, has_aux=True)(params)


@functools.cache
def expected(num_layers=8):
    return jax.jit(whole)(params_of(num_layers), batch())


def on_mesh(function, axes, *args, num_layers=8):
    # The CPU client has a thread a device, and collectives without an order can take all of them: four have some left.
    mesh = DeviceMesh.Config(axes=axes).build().mesh(jax.devices()[: math.prod(axes.values())])
    with jax.set_mesh(mesh), use_plan(PLAN):
        specs = param_specs(model(num_layers=num_layers))
        placed = jax.device_put(params_of(num_layers), param_shardings(specs, PLAN.param_rules, mesh))
        split = placed["stack"]["layer"]["kernel"].addressable_shards[0].data.shape[0]
        assert split * axes["stage"] == 8 or num_layers % axes["stage"]
        return jax.jit(function)(placed, *args)


def check(found, num_layers=8):
    grads, outputs = found
    wanted_grads, wanted = expected(num_layers)
    np.testing.assert_allclose(outputs.total_loss(), wanted.total_loss(), rtol=1e-5)
    assert sorted(outputs.losses) == sorted(wanted.losses)
    for path, term in wanted.losses.items():
        np.testing.assert_allclose(outputs.losses[path].weight, term.weight, err_msg=path)
    for path, metric in wanted.metrics.items():
        np.testing.assert_allclose(outputs.metrics[path].value(), metric.value(), rtol=1e-5, err_msg=path)
    for path, grad in flatten_paths(grads).items():
        np.testing.assert_allclose(grad, flatten_paths(wanted_grads)[path], rtol=1e-4, atol=1e-6, err_msg=path)


@pytest.mark.parametrize(
    ("axes", "microbatches", "rounds", "num_layers"),
    [
        ({"stage": 2, "fsdp": 2}, 4, 1, 5),
        ({"stage": 4}, 2, 2, 7),
        ({"stage": 4, "fsdp": 2}, 8, 2, 8),
        pytest.param({"stage": 4, "fsdp": 2}, 4, 1, 6, marks=pytest.mark.nightly),
        pytest.param({"stage": 4, "fsdp": 2}, 4, 1, 8, marks=pytest.mark.nightly),
        pytest.param({"stage": 2, "fsdp": 4}, 2, 2, 8, marks=pytest.mark.nightly),
        pytest.param({"stage": 2, "fsdp": 4}, 2, 2, 5, marks=pytest.mark.nightly),
        pytest.param({"stage": 4, "fsdp": 2}, 4, 2, 8, marks=pytest.mark.nightly),
        pytest.param({"stage": 4, "fsdp": 2}, 4, 3, 10, marks=pytest.mark.nightly),
        pytest.param({"stage": 8}, 4, 1, 3, marks=pytest.mark.nightly),
    ],
)
def test_stack_gives_the_single_device_loss_and_gradients(axes, microbatches, rounds, num_layers):
    loss = ModelLoss(model(microbatches, rounds, num_layers, FullRemat.Config()))

    def gradients(params, rows):
        def total(p):
            outputs = loss(p, {}, rows, jax.random.key(0))
            return outputs.total_loss(), outputs

        return jax.grad(total, has_aux=True)(params)

    check(on_mesh(gradients, axes, batch(), num_layers=num_layers), num_layers)


@pytest.mark.parametrize(
    ("axes", "microbatches", "num_layers", "schedule", "runs"),
    [
        ({"stage": 2, "fsdp": 2}, 4, 5, zero_bubble(4, 1), ()),
        ({"stage": 4}, 4, 8, one_forward_one_backward(4, 1), ()),
        ({"stage": 2, "fsdp": 2}, 4, 7, dualpipe(4, 2), (1, 2, 3, 1)),
        pytest.param({"stage": 3}, 8, 8, one_forward_one_backward(8, 2), (), marks=pytest.mark.nightly),
        pytest.param({"stage": 3}, 8, 8, zero_bubble(8, 2), (), marks=pytest.mark.nightly),
        pytest.param({"stage": 4}, 2, 8, zero_bubble(2, 2), (), marks=pytest.mark.nightly),
        pytest.param({"stage": 4}, 2, 8, one_forward_one_backward(2, 2), (), marks=pytest.mark.nightly),
        pytest.param({"stage": 3}, 8, 8, dualpipe(8, 2), (), marks=pytest.mark.nightly),
        pytest.param({"stage": 2}, 4, 8, dualpipe(4, 3), (), marks=pytest.mark.nightly),
        pytest.param({"stage": 2}, 4, 8, one_forward_one_backward(4, 1), (5, 3), marks=pytest.mark.nightly),
        pytest.param({"stage": 4}, 4, 6, one_forward_one_backward(4, 1), (), marks=pytest.mark.nightly),
        pytest.param({"stage": 4}, 2, 7, zero_bubble(2, 1), (), marks=pytest.mark.nightly),
        pytest.param({"stage": 2}, 8, 3, zero_bubble(8, 1), (), marks=pytest.mark.nightly),
        pytest.param({"stage": 2, "fsdp": 2}, 2, 8, one_forward_one_backward(2, 1), (), marks=pytest.mark.nightly),
    ],
)
def test_early_backwards_give_the_single_device_loss_and_gradients(axes, microbatches, num_layers, schedule, runs):
    strategy = schedule.gradients.build()
    loss = ModelLoss(model(microbatches, schedule.stack.rounds, num_layers, runs=runs))
    found = on_mesh(
        lambda p, b: strategy.gradients(loss, p, {}, b, jax.random.key(0)), axes, batch(), num_layers=num_layers
    )
    check(found, num_layers)


@pytest.mark.nightly
def test_frozen_layers_get_no_gradient():
    strategy = OneForwardOneBackward.Config(microbatches=4).build()
    scale = PARAMS["stack"]["layer"]["scale"]
    loss = ModelLoss(model(), {"stack": {"layer": {"scale": scale}}})

    def gradients(params, rows):
        trained = {**params, "stack": {"layer": {"kernel": params["stack"]["layer"]["kernel"]}}}
        return strategy.gradients(loss, trained, {}, rows, jax.random.key(0))

    grads, _ = on_mesh(gradients, {"stage": 4, "fsdp": 2}, batch())
    assert sorted(flatten_paths(grads)) == ["stack.layer.kernel", "table"]
    np.testing.assert_allclose(
        grads["stack"]["layer"]["kernel"], expected()[0]["stack"]["layer"]["kernel"], rtol=1e-4, atol=1e-6
    )


def test_1f1b_keeps_fewer_activations_than_gpipe():
    rows = batch(64, 32)

    def gpipe(params, b):
        loss = ModelLoss(model(16, remat=FullRemat.Config()))
        return jax.grad(lambda p: loss(p, {}, b, jax.random.key(0)).total_loss())(params)

    strategy = OneForwardOneBackward.Config(microbatches=16).build()
    mesh = DeviceMesh.Config(axes={"stage": 2, "fsdp": 4}).build().mesh(jax.devices())

    def peak(function):
        with jax.set_mesh(mesh), use_plan(PLAN):
            placed = jax.device_put(PARAMS, param_shardings(param_specs(model()), PLAN.param_rules, mesh))
            return jax.jit(function).lower(placed, rows).compile().memory_analysis().temp_size_in_bytes

    early = peak(lambda p, b: strategy.gradients(ModelLoss(model(16)), p, {}, b, jax.random.key(0))[0])
    assert early < 0.7 * peak(gpipe)


def test_decoding_through_stages_equals_one_device():
    ids = jax.random.randint(jax.random.key(2), (2, 5), 0, 32)

    def decode(params):
        lm = model()
        caches = {n: jnp.zeros(s.shape) for n, s in lm.cache_spec(2, 8, "float32").items()}
        step = kn.functional(lm, "decode")
        (prompt, caches), _ = step(params, {}, ids[:, :3], Sequences(lengths=jnp.int32(0)), caches)
        (one, caches), _ = step(params, {}, ids[:, 3:4], Sequences(lengths=jnp.int32(3)), caches)
        (two, _), _ = step(params, {}, ids[:, 4:], Sequences(lengths=jnp.int32(4)), caches)
        return jnp.concatenate([prompt, one, two], 1)

    found = on_mesh(decode, {"stage": 4, "fsdp": 2})
    np.testing.assert_allclose(found, jax.jit(decode)(PARAMS), rtol=1e-5, atol=1e-5)


def test_microbatches_that_do_not_fit_and_uneven_decoding_are_refused():
    uneven = model(num_layers=6)
    ids = jnp.zeros((2, 5), jnp.int32)

    def decode(params):
        caches = {n: jnp.zeros(s.shape) for n, s in uneven.cache_spec(2, 8, "float32").items()}
        return kn.functional(uneven, "decode")(params, {}, ids, Sequences(lengths=jnp.int32(0)), caches)

    with pytest.raises(ShardingError, match=r"num_layers \(6\) is not a multiple of the 4 stages.*decode with another"):
        on_mesh(decode, {"stage": 4, "fsdp": 2}, num_layers=6)
    with pytest.raises(ShardingError, match="a batch of 8 rows can't be cut into 3 equal microbatches"):
        on_mesh(lambda p, b: ModelLoss(model(3))(p, {}, b, jax.random.key(0)), {"stage": 4, "fsdp": 2}, batch())


def test_1f1b_needs_a_pipelined_stack():
    strategy = OneForwardOneBackward.Config(microbatches=2).build()
    with pytest.raises(ConfigError, match="apply the modifier `pipeline`"):
        strategy.gradients(ModelLoss(TinyLM.Config().build()), {}, {}, batch(), jax.random.key(0))
