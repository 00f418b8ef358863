"""Local kernels over eight devices: same values and gradients, on local problems, or a reason."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, use_plan
from kanawa.errors import KernelError
from kanawa.kernels import MaskSpec
from kanawa.kernels.attention import attention
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.grouped_matmul import grouped_matmul

RULES = (
    ("batch", ("data",)),
    ("length", ("context",)),
    ("heads", ("tensor",)),
    ("kv_heads", ("tensor",)),
)
SEEN = []


class LocalAttention(ReferenceAttention):
    """The reference, run shard by shard and through the custom_vjp, as a fused kernel would be."""

    name = "attention.cpu.local"
    platforms = ("cpu",)
    local = True
    autodiff = False

    def supports(self, problem, device):
        SEEN.append(problem)
        return super().supports(problem, device)

    def forward(self, problem, operands):
        assert operands["q"].shape[:3] == (problem.batch, problem.q_length, problem.num_heads)
        return super().forward(problem, operands)


@pytest.fixture
def local(install):
    SEEN.clear()
    reference = "kanawa.kernels.attention.reference:ReferenceAttention"
    install(
        core={
            LocalAttention.name: f"{__name__}:LocalAttention",
            "attention.any.reference": reference,
        }
    )


def mesh(**axes):
    sizes = {"data": 1, "context": 1, "tensor": 1, **axes}
    kinds = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)


def pinned(name):
    policy = KernelPolicy(pins=(("attention", name),))
    return ExecutionPlan(activation_rules=RULES, kernels=policy)


def loss(q, k, v, bias, sinks, ids):
    mask = MaskSpec(causal=True, window=(5, None))
    out = attention(q, k, v, mask=mask, q_segment_ids=ids, bias=bias, sinks=sinks)
    return jnp.sum(jnp.sin(out)), out


def evaluate(name, operands, over=None):
    grad = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True))
    with use_plan(pinned(name)):
        if over is None:
            return grad(*operands)
        with jax.set_mesh(over):
            return grad(*operands)


@pytest.mark.parametrize(
    "axes",
    [{"data": 4, "tensor": 2}, {"context": 4, "tensor": 2}],
    ids=["rows and heads", "positions and heads"],
)
def test_values_and_gradients_are_those_of_one_device(axes, local, normal):
    operands = (
        normal(4, 16, 4, 8),
        normal(4, 16, 2, 8),
        normal(4, 16, 2, 8),
        normal(1, 4, 16, 16),
        normal(4),
        jnp.repeat(jnp.array([[1, 2]]), 8, axis=1).repeat(4, axis=0),
    )
    expected = evaluate("attention.any.reference", operands)
    found = evaluate(LocalAttention.name, operands, mesh(**axes))
    for mine, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=3e-6)
    problem = SEEN[-1]
    assert problem.batch == 4 // axes.get("data", 1)
    assert (problem.num_heads, problem.num_kv_heads) == (2, 1)
    assert problem.q_length == 16 // axes.get("context", 1)
    assert problem.kv_length == 16
    assert problem.has_q_positions == ("context" in axes)


def test_a_size_that_does_not_divide_rules_out_local_kernels(local):
    x = jnp.ones((2, 4, 3, 4))
    plan = ExecutionPlan(activation_rules=RULES)
    with use_plan(plan), jax.set_mesh(mesh(tensor=2, data=4)):
        np.testing.assert_allclose(jax.jit(attention)(x, x, x), x)
    with (
        use_plan(pinned(LocalAttention.name)),
        jax.set_mesh(mesh(tensor=2, data=4)),
        pytest.raises(KernelError, match=r"heads 3 of q doesn't divide over tensor=2"),
    ):
        jax.jit(attention)(x, x, x)


def test_inside_a_shard_map_operands_are_taken_as_they_are(local, normal):
    x = normal(8, 4, 2, 4)
    with use_plan(pinned(LocalAttention.name)), jax.set_mesh(mesh(data=8)):
        split = jax.shard_map(lambda x: attention(x, x, x), in_specs=P("data"), out_specs=P("data"))
        found = jax.jit(split)(x)
    assert SEEN[-1].batch == 1
    np.testing.assert_allclose(found, jax.jit(attention)(x, x, x), atol=1e-6)


def test_grouped_products_need_a_shard_map_for_a_local_kernel(install, normal):
    from kanawa.kernels.grouped_matmul import GROUPED_MATMUL
    from kanawa.kernels.sharded import split_operands
    from kanawa_kernel_tools.examples.grouped_matmul import BASE

    operands = {"lhs": normal(8, 2), "rhs": normal(2, 2, 2), "group_sizes": jnp.array([4, 4])}
    with jax.set_mesh(mesh(data=8)):
        split = split_operands(GROUPED_MATMUL, GROUPED_MATMUL.operand_axes, operands)
    assert split.error == ("it runs on one shard, but mesh axes data=8 are left: call it inside shard_map over them")
    assert dataclasses.replace(BASE).localize(split.shapes).rows == 8
    assert grouped_matmul.__module__.startswith("kanawa.kernels.grouped_matmul")
