"""Cross entropy against JAX's own log-softmax, and memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.errors import KernelError
from kanawa.kernels.softmax_cross_entropy import softmax_cross_entropy

N, D, V = 24, 8, 32


@pytest.fixture
def operands(normal):
    targets = (jnp.arange(N, dtype=jnp.int32) * 7) % V
    return normal(N, D), normal(D, V), targets, jnp.abs(normal(N)).at[3].set(0)


def oracle(hidden, weight, targets, weights, cap, z, smoothing):
    """The definition by log_softmax and a dense target distribution."""
    logits = hidden @ weight
    if cap:
        logits = cap * jnp.tanh(logits / cap)
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    goal = (1 - smoothing) * jax.nn.one_hot(targets, V) + smoothing / V
    loss = -jnp.sum(goal * log_probs, axis=-1)
    loss += z * jax.scipy.special.logsumexp(logits, axis=-1) ** 2
    right = (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32)
    nll = -jnp.take_along_axis(log_probs, targets[:, None], axis=-1)[:, 0]
    return tuple(jnp.sum(weights * x) for x in (loss, jnp.ones(N), nll, right))


@pytest.mark.parametrize("options", [(None, 0.0, 0.0), (2.0, 0.1, 0.2)], ids=["plain", "all"])
def test_sums_and_gradients_match_the_oracle(options, operands):
    cap, z, smoothing = options

    def ours(*x):
        loss, weight, extra = softmax_cross_entropy(*x, logit_cap=cap, z_loss=z, label_smoothing=smoothing)
        return loss, weight, extra["nll"], extra["correct"]

    def everything(f):
        def mean(h, w, lw):
            loss, weight, *_ = f(h, w, operands[2], lw)
            return loss / weight

        h, w, _, lw = operands
        return jax.jit(lambda *x: (f(*operands), jax.grad(mean, argnums=(0, 1, 2))(*x)))(h, w, lw)

    right = everything(lambda *x: oracle(*x, cap, z, smoothing))
    for mine, want in zip(*map(jax.tree.leaves, (everything(ours), right)), strict=True):
        np.testing.assert_allclose(mine, want, rtol=2e-5, atol=2e-6)


def test_tied_and_batched_are_the_same_numbers(operands):
    hidden, weight, targets, weights = operands
    flat = softmax_cross_entropy(*operands)
    rows = (x.reshape(4, 6, *x.shape[1:]) for x in (hidden, targets, weights))
    batched = next(rows)
    tied = softmax_cross_entropy(batched, weight.T, *rows, tied=True)
    for mine, right in zip(jax.tree.leaves(tied), jax.tree.leaves(flat), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-5)


def test_extras_carry_no_gradient(operands):
    grad = jax.grad(lambda h: softmax_cross_entropy(h, *operands[1:])[2]["nll"])
    np.testing.assert_array_equal(grad(operands[0]), 0)


def test_it_costs_the_memory_that_plain_jax_costs():
    tokens, width, vocab = 1024, 32, 2048
    hidden, weight = jnp.ones((tokens, width)), jnp.ones((width, vocab))
    targets, weights = jnp.zeros(tokens, jnp.int32), jnp.ones(tokens)

    def plain(hidden, weight):
        logits = hidden @ weight
        picked = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
        return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - picked)

    def ours(hidden, weight):
        return softmax_cross_entropy(hidden, weight, targets, weights)[0]

    def memory(f):
        compiled = jax.jit(jax.value_and_grad(f, argnums=(0, 1))).lower(hidden, weight).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(ours) <= memory(plain) * 1.01


def test_wrong_shapes_are_named(operands):
    hidden, weight, targets, weights = operands
    with pytest.raises(KernelError, match=r"expected \[N, D\] or \[B, T, D\], \[V, D\]"):
        softmax_cross_entropy(hidden, weight, targets, weights, tied=True)
    with pytest.raises(KernelError, match="chunk_tokens 0 must be at least 1"):
        softmax_cross_entropy(*operands, chunk_tokens=0)


def test_targets_of_few_bits_are_no_other_tokens(normal):
    hidden, weight, targets = normal(N, D), normal(D, 300), jnp.arange(N, dtype=jnp.int32)

    def call(hidden, targets):
        return softmax_cross_entropy(hidden, weight, targets, jnp.ones(N))[0]

    # As 8 bits, token 256 would be token 0 too.
    ours, right = (jax.value_and_grad(call)(hidden, targets.astype(dtype)) for dtype in (jnp.int8, jnp.int32))
    jax.tree.map(np.testing.assert_array_equal, ours, right)
