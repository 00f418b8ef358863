"""Attention over a split sequence equals attention on one device, out and gradients; and it keeps 1/n of it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.errors import KernelError
from kanawa.kernels import CAUSAL, MaskSpec, sliding_window
from kanawa.kernels.attention import attention
from kanawa.kernels.attention.gradient import attention_gradient
from kanawa.kernels.attention.operands import q_positions
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.verdict import SUPPORTED
from kanawa_parallel.context.contiguous import Contiguous
from kanawa_parallel.context.looped import RingLoop
from kanawa_parallel.context.zigzag import ZigZag
from kanawa_parallel.strategies.all_gather import AllGatherAttention
from kanawa_parallel.strategies.ring import RingAttention
from kanawa_parallel.strategies.tensor import TensorParallel
from kanawa_parallel.strategies.ulysses import UlyssesAttention

B, T, H, K, D = 2, 32, 8, 4, 8
KEYS = jax.random.split(jax.random.key(0), 5)
Q, KEY, V, OUT = (jax.random.normal(KEYS[i], (B, T, heads, D)) for i, heads in enumerate((H, K, K, H)))
SINKS = jax.random.normal(KEYS[4], (H,))
IDS = np.stack([np.repeat([1, 2, 3], [10, 13, 9]), np.repeat([1, 2, 0], [17, 12, 3])]).astype(np.int32)
#: One case for each path: zig-zag and packed, few steps of a window, a mask that needs every position.
CASES = {
    "packed": (CAUSAL, {"sinks": SINKS, "q_segment_ids": jnp.asarray(IDS)}),
    "window": (sliding_window(6), {"logit_cap": 2.0, "q_segment_ids": jnp.asarray(IDS)}),
    "prefix": (MaskSpec(causal=True, prefix=True), {"prefix_lengths": jnp.asarray([5, 20], jnp.int32)}),
}
WAYS = [
    pytest.param(RingAttention.Config(), "packed"),
    pytest.param(RingAttention.Config(), "window"),
    pytest.param(AllGatherAttention.Config(), "packed"),
    pytest.param(UlyssesAttention.Config(), "packed"),
    pytest.param(RingAttention.Config(), "prefix", marks=pytest.mark.nightly),
    pytest.param(RingAttention.Config(balanced=False), "packed", marks=pytest.mark.nightly),
    pytest.param(AllGatherAttention.Config(), "window", marks=pytest.mark.nightly),
    pytest.param(AllGatherAttention.Config(), "prefix", marks=pytest.mark.nightly),
    pytest.param(UlyssesAttention.Config(), "window", marks=pytest.mark.nightly),
    pytest.param(UlyssesAttention.Config(), "prefix", marks=pytest.mark.nightly),
]


def evaluate(case):
    """Returns out (padding cut) and gradients by q, k, v and sinks."""
    mask, extra = CASES[case]
    extra = dict(extra)
    sinks = extra.pop("sinks", jnp.zeros(H))
    has_sinks = case == "packed"

    def loss(q, k, v, sinks):
        out = attention(q, k, v, mask=mask, sinks=sinks if has_sinks else None, **extra)
        if "q_segment_ids" in extra:
            out = jnp.where((extra["q_segment_ids"] != 0)[:, :, None, None], out, jnp.zeros(()))
        return jnp.sum(out * OUT), out

    gradients, out = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True))(Q, KEY, V, sinks)
    return out, *gradients


@functools.cache
def one_device(case):
    return evaluate(case)


@pytest.mark.parametrize(("way", "case"), WAYS)
def test_equals_one_device(way, case):
    strategies = [TensorParallel.Config().build(), way.build()]
    plan = ExecutionPlan(
        activation_rules=tuple(r for s in strategies for r in s.activation_rules()),
        distributed=tuple(d for s in strategies for d in s.distributed()),
    )
    mesh = jax.make_mesh((4, 2), ("context", "tensor"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh), use_plan(plan):
        found = evaluate(case)
    for ours, right in zip(found, one_device(case), strict=True):
        np.testing.assert_allclose(ours, right, atol=2e-5, rtol=1e-5)


def problem(length, mask=CAUSAL, **changes):
    sizes = {"batch": 1, "num_heads": 4, "num_kv_heads": 4, "head_dim": 32, "v_head_dim": 32, "dtype": "float32"}
    return AttentionProblem(q_length=length, kv_length=length, mask=mask, scale=0.2, **{**sizes, **changes})


class QueryBlocks(ReferenceAttention):
    """The reference over 64 queries at a time: residuals, not scores, decide how much memory it takes."""

    autodiff = False

    def forward(self, problem, operands):
        block, blocks = self._blocks(problem, operands)
        out, lse = jax.lax.map(lambda mine: super(QueryBlocks, self).forward(block, {**operands, **mine}), blocks)
        return self._join(out, 1), self._join(lse, 2)

    def backward(self, problem, operands, out, residuals, cotangents):
        block, blocks = self._blocks(problem, operands)
        blocks |= {"out": self._cut(out, 1), "lse": self._cut(residuals, 2), "dout": self._cut(cotangents, 1)}

        def step(sums, mine):
            out, lse, dout = (mine.pop(name) for name in ("out", "lse", "dout"))
            grads = attention_gradient(block, {**operands, **mine}, out, lse, dout)
            return {name: total + grads[name] for name, total in sums.items()}, grads["q"]

        sums, dq = jax.lax.scan(step, {name: jnp.zeros(operands[name].shape) for name in ("k", "v")}, blocks)
        return {"q": self._join(dq, 1), **sums}

    def _blocks(self, problem, operands):
        rows = jnp.broadcast_to(q_positions(problem, operands), (problem.batch, problem.q_length))
        block = dataclasses.replace(problem, q_length=64, has_q_positions=True)
        return block, {"q": self._cut(operands["q"], 1), "q_positions": self._cut(rows, 1)}

    def _cut(self, x, axis):
        return jnp.stack(jnp.split(x, x.shape[axis] // 64, axis))

    def _join(self, x, axis):
        return jnp.concatenate(list(x), axis)


def temporaries(shards, length=2048):
    """Returns bytes per device that the compiler needs beyond arguments and results, for four attention layers."""
    way, kernel = RingLoop(), QueryBlocks()
    local = problem(length // shards)
    kernels = dict.fromkeys(way.blocks(local, shards), kernel)
    mesh = jax.make_mesh((shards,), ("context",), devices=jax.devices()[:shards], axis_types=(AxisType.Auto,))
    split = PartitionSpec(None, "context")

    def ring(q, k, v):
        mapped = jax.shard_map(
            lambda operands: way.attend(local, operands, kernels, ("context",)),
            in_specs=(split,),
            out_specs=split,
            check_vma=False,
        )
        return mapped({"q": q, "k": k, "v": v})

    def loss(q, k, v):
        # Keys of each layer depend on the layer: the compiler can't share their trip around the ring.
        x, _ = jax.lax.scan(lambda x, _: (x + ring(x * k, x * v, x), None), q, None, length=4)
        return jnp.sum(x)

    shape = jax.ShapeDtypeStruct((1, length, 4, 32), jnp.float32, sharding=NamedSharding(mesh, split))
    with jax.set_mesh(mesh):
        program = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(shape, shape, shape).compile()
    return program.memory_analysis().temp_size_in_bytes


class Rounds(ReferenceAttention):
    """Returns 16 bits, whatever its operands have."""

    name = "attention.any.rounds"

    def forward(self, problem, operands):
        out, lse = super().forward(problem, operands)
        return out.astype(jnp.float16), lse


def test_a_blocks_kernel_that_returns_another_dtype_is_named():
    mesh = jax.make_mesh((2,), ("context",), devices=jax.devices()[:2], axis_types=(AxisType.Auto,))
    split, local = PartitionSpec(None, "context"), problem(64)
    kernels = dict.fromkeys(RingLoop().blocks(local, 2), Rounds())

    def attend(operands):
        return RingLoop().attend(local, operands, kernels, ("context",))

    ring = jax.shard_map(attend, in_specs=(split,), out_specs=split, check_vma=False)
    x = jnp.ones((1, 128, 4, 32))
    with jax.set_mesh(mesh), pytest.raises(KernelError, match="attention.any.rounds returned float16"):
        jax.eval_shape(ring, dict.fromkeys("qkv", x))


def test_a_ring_of_n_keeps_an_nth():
    assert QueryBlocks().supports(problem(256), None) == SUPPORTED
    assert temporaries(8) < 1.4 * temporaries(1) / 8


@pytest.mark.parametrize(("window", "steps"), [(1, 0), (2, 1), (64, 1), (65, 1), (66, 2), (1000, 7)])
def test_a_window_meets_only_the_shards_it_reaches(window, steps):
    assert Contiguous(problem(64, sliding_window(window)), 8).steps == steps


@pytest.mark.parametrize("shards", [2, 3, 4, 7])
def test_zigzag_gives_every_shard_an_early_and_a_late_half(shards):
    layout = ZigZag(problem(8), shards)
    mesh = jax.make_mesh((shards,), ("context",), devices=jax.devices()[:shards], axis_types=(AxisType.Auto,))
    split = PartitionSpec("context")

    def both(x):
        arranged = layout.arrange(x, 0, ("context",))
        return arranged, layout.restore(arranged, 0, ("context",))

    mapped = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=split, out_specs=(split, split), check_vma=False))
    halves = np.repeat(np.arange(2 * shards), 4)
    arranged, restored = mapped(halves)
    wanted = np.repeat([half for i in range(shards) for half in (i, 2 * shards - 1 - i)], 4)
    np.testing.assert_array_equal(arranged, wanted)
    np.testing.assert_array_equal(restored, halves)


def test_a_dense_bias_is_refused_with_the_reason():
    verdict = RingLoop().supports(problem(64, bias_shape=(1, 4, 64, 512)), 8)
    assert verdict.reason == "a dense bias has a column for every key of the whole sequence"
