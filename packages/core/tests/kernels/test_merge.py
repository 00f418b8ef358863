"""Merging by log-sum-exp: any partition of the keys gives the attention over all of them."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa.kernels.attention.merge import merge, merge_sinks

T, H, D = 3, 2, 4


def parts(seed, sizes, masked):
    """Random values and scores over sum(sizes) keys; those in `masked` are -inf."""
    rng = np.random.default_rng(seed)
    total = sum(sizes)
    scores = rng.normal(size=(1, H, T, total)) * 5
    scores[..., [i for i in masked if i < total]] = -np.inf
    return scores, rng.normal(size=(1, total, H, D))


def attend(scores, values):
    """Softmax in float64: (out [1, T, H, D], lse [1, H, T]), empty rows 0 and -inf."""
    with np.errstate(divide="ignore"):
        weights = np.exp(scores)
        total = weights.sum(-1)
        out = np.einsum("bhts,bshd->bthd", weights, values)
        safe = np.where(total == 0, 1, total).transpose(0, 2, 1)[..., None]
        return out / safe, np.log(total)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    masked=st.sets(st.integers(0, 15), max_size=12),
)
def test_any_partition_gives_the_whole(seed, sizes, masked):
    scores, values = parts(seed, sizes, masked)
    out, lse = jnp.zeros((1, T, H, D)), jnp.full((1, H, T), -jnp.inf)
    start = 0
    for size in sizes:
        piece = slice(start, start + size)
        block = attend(scores[..., piece], values[:, piece])
        out, lse = merge(out, lse, *(jnp.asarray(x, jnp.float32) for x in block))
        start += size
    whole, whole_lse = attend(scores, values)
    np.testing.assert_allclose(out, whole, atol=1e-5)
    np.testing.assert_allclose(lse, whole_lse, rtol=1e-5, atol=1e-5)


def test_sinks_are_one_more_key_without_a_value():
    scores, values = parts(3, [5], {1})
    sinks = np.array([0.3, -2.0])
    column = np.broadcast_to(sinks[None, :, None, None], (1, H, T, 1))
    with_sink = attend(np.concatenate([scores, column], -1), np.pad(values, [(0, 0), (0, 1)] + [(0, 0)] * 2))
    block = (jnp.asarray(x, jnp.float32) for x in attend(scores, values))
    found = merge_sinks(*block, jnp.asarray(sinks, jnp.float32))
    for mine, expected in zip(found, with_sink, strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-5)


def test_gradients_through_empty_blocks_are_finite():
    empty = (jnp.zeros((1, T, H, D)), jnp.full((1, H, T), -jnp.inf))

    def total(out, lse):
        return jnp.sum(merge(*empty, out, lse)[0])

    grads = jax.grad(total, argnums=(0, 1))(jnp.ones((1, T, H, D)), jnp.zeros((1, H, T)))
    assert all(jnp.all(jnp.isfinite(grad)) for grad in grads)
