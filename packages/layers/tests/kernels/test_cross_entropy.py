"""Chunked cross entropy: the reference's numbers, also over shards, and a fraction of its memory."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, use_plan
from kanawa.kernels.softmax_cross_entropy import softmax_cross_entropy
from kanawa.plugins import DeviceSpec
from kanawa.testing.compare import examples_for
from kanawa.testing.kernel import KernelConformance
from kanawa_layers.kernels import cross_entropy
from kanawa_layers.kernels.cross_entropy import ChunkedCrossEntropy, chunk_size

N, D, V = 24, 8, 32
NETWORK = {"link_bandwidth": 1e11, "network_bandwidth": 1e10, "chips_per_host": 4, "source": "made up"}
RULES = (("batch", ("data",)), ("length", ("context",)), ("vocab", ("tensor",)))
WHOLE = ExecutionPlan(kernels=KernelPolicy(pins=(("softmax_cross_entropy", "softmax_cross_entropy.any.reference"),)))


class TestChunked(KernelConformance):
    generated = 8

    def kernel(self):
        return ChunkedCrossEntropy()

    def problems(self):
        # Others are generated; this is all of it at once.
        return self.examples().problems[-2:-1]


@pytest.fixture
def operands(normal):
    targets = (jnp.arange(N, dtype=jnp.int32) * 7) % V
    return normal(N, D), normal(D, V), targets, jnp.abs(normal(N)).at[3].set(0)


def test_sums_and_gradients_through_the_public_call_are_those_of_all_logits_at_once(operands):
    hidden, weight, targets, weights = operands

    def mean(hidden, weight, weights):
        total, count, extra = softmax_cross_entropy(
            hidden, weight, targets, weights, logit_cap=2.0, z_loss=0.1, label_smoothing=0.2, chunk_tokens=10
        )
        return total / count, extra

    both = jax.value_and_grad(mean, argnums=(0, 1, 2), has_aux=True)
    found = jax.jit(both)(hidden, weight, weights)
    with use_plan(WHOLE):
        right = jax.jit(both)(hidden, weight, weights)
    for mine, want in zip(*map(jax.tree.leaves, (found, right)), strict=True):
        np.testing.assert_allclose(mine, want, rtol=2e-5, atol=2e-6)


def test_extras_carry_no_gradient(operands):
    grad = jax.grad(lambda h: softmax_cross_entropy(h, *operands[1:], chunk_tokens=10)[2]["nll"])
    np.testing.assert_array_equal(grad(operands[0]), 0)


def test_all_logits_are_never_held():
    tokens, width, vocab = 1024, 32, 2048
    hidden, weight = jnp.ones((tokens, width)), jnp.ones((width, vocab))
    targets, weights = jnp.zeros(tokens, jnp.int32), jnp.ones(tokens)

    def ours(chunk):
        return lambda h, w: softmax_cross_entropy(h, w, targets, weights, chunk_tokens=chunk)[0]

    def memory(f):
        compiled = jax.jit(jax.value_and_grad(f, argnums=(0, 1))).lower(hidden, weight).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    logits = tokens * vocab * 4
    assert memory(ours(64)) < logits / 4


def test_one_chunk_is_refused_with_a_reason_and_chunks_are_even():
    (whole,) = examples_for("softmax_cross_entropy").problems[-1:]
    verdict = ChunkedCrossEntropy().supports(whole, None)
    assert verdict.reason == "96 tokens fit in one chunk of 96: nothing to save"
    assert chunk_size(dataclasses.replace(whole, tokens=100, chunk_tokens=64)) == 50


def test_a_chunk_computes_longer_than_it_reads_the_weight(monkeypatch):
    figures = {"peak_flops": {"bfloat16": 9e14}, "memory_bytes": 32 * 2**30, "memory_bandwidth": 1.6e12}
    device = DeviceSpec(name="a", platform="b", **figures, **NETWORK)
    monkeypatch.setattr(cross_entropy, "device_spec_of_kind", lambda kind: device)
    base = examples_for("softmax_cross_entropy").problems[0]
    problem = dataclasses.replace(base, tokens=32768, width=3840, vocab=262144, chunk_tokens=None)
    size = chunk_size(problem)
    assert size * problem.vocab * 4 <= figures["memory_bytes"] / 16
    # Each chunk reads the weight twice, bf16, and reads and writes its fp32 gradient.
    numbers = problem.width * problem.vocab
    assert 6 * size * numbers / 9e14 > 12 * numbers / 1.6e12
    # With few words a chunk of 128 MiB is longer than that.
    assert chunk_size(dataclasses.replace(problem, vocab=4096)) == 8192


def mesh(**axes):
    sizes = {"data": 1, "context": 1, "tensor": 1, **axes}
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * 3)


def unwanted_collectives(text):
    """Collectives that cost too much: gathered tokens, gradients added up inside a loop."""
    bodies = set(re.findall(r"body=%?([\w.\-]+)", text))
    assert bodies, "the chunks should be a loop"
    found, inside = [], False
    for line in text.splitlines():
        header = re.match(r"(?:ENTRY )?%?([\w.\-]+) \(", line)
        if header:
            inside = header[1] in bodies
        gathers = " all-gather(" in line and re.search(r"f32\[(\d+,)+16\]", line)
        reduces = re.search(r" (all-reduce|reduce-scatter)\(", line) and "f32[16," in line
        if gathers or (inside and reduces):
            found.append(line)
    return found


@pytest.mark.parametrize("axes", [{"data": 8}, {"data": 2, "context": 2, "tensor": 2}], ids=str)
def test_chunked_cross_entropy_adds_up_over_shards(axes, normal):
    hidden, weight = normal(8, 12, 16), normal(16, 64)
    targets = jnp.arange(96, dtype=jnp.int32).reshape(8, 12) % 64
    weights = jnp.abs(normal(8, 12))

    def loss(hidden, weight, weights, chunk):
        total, count, extra = softmax_cross_entropy(hidden, weight, targets, weights, z_loss=0.1, chunk_tokens=chunk)
        return total / count, extra

    both = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    expected = jax.jit(lambda *x: both(*x, None))(hidden, weight, weights)
    with use_plan(ExecutionPlan(activation_rules=RULES)), jax.set_mesh(mesh(**axes)):
        split = jax.device_put(weight, P(None, "tensor"))
        operands = (jax.device_put(hidden, P("data")), split, jax.device_put(weights, P("data")))
        compiled = jax.jit(lambda *x: both(*x, 5)).lower(*operands).compile()
        found = compiled(*operands)
    for mine, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-6)
    assert not unwanted_collectives(compiled.as_text())


def test_targets_of_few_bits_are_no_other_tokens(normal):
    hidden, weight, targets = normal(N, D), normal(D, 300), jnp.arange(N, dtype=jnp.int32)

    def call(hidden, targets):
        return softmax_cross_entropy(hidden, weight, targets, jnp.ones(N), chunk_tokens=10)[0]

    # As 8 bits, token 256 would be token 0 too.
    ours, right = (jax.value_and_grad(call)(hidden, targets.astype(dtype)) for dtype in (jnp.int8, jnp.int32))
    jax.tree.map(np.testing.assert_array_equal, ours, right)
