"""Draws by keyed noise: of the right distribution, and the same in any shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.arrays.draws import exponential, keyed_draw


@pytest.mark.parametrize("vocab", [6, 37, 64])
def test_draws_are_in_proportion_to_the_weights(vocab: int) -> None:
    weights = np.random.default_rng(0).exponential(size=vocab).astype(np.float32) ** 2
    weights[vocab // 2] = 0.0
    count = 200_000
    keys = jnp.arange(count, dtype=jnp.int32) * 7 - 3
    drawn = jax.jit(keyed_draw)(jnp.broadcast_to(weights, (count, vocab)), keys)
    seen = np.bincount(np.asarray(drawn), minlength=vocab)
    expected = weights / weights.sum() * count
    assert seen[vocab // 2] == 0
    wanted = expected[expected > 0]
    chi_square = float((((seen[expected > 0] - wanted) ** 2) / wanted).sum())
    # More than five standard deviations above the mean.
    assert chi_square < len(wanted) + 5.5 * np.sqrt(2 * len(wanted))


def test_a_draw_depends_on_its_key_and_weights_alone() -> None:
    weights = jnp.asarray(np.random.default_rng(1).exponential(size=(2, 3, 50)), jnp.float32)
    keys = jnp.asarray([[3, -9, 5], [2**31 - 1, 0, 3]], jnp.int32)
    together = np.asarray(keyed_draw(weights, keys))
    alone = [[int(jax.jit(keyed_draw)(weights[i, j], keys[i, j])) for j in range(3)] for i in range(2)]
    np.testing.assert_array_equal(together, alone)
    # Rounding of weights changes a draw in as many cases as it changes digits, not in each block after the first.
    rounded = keyed_draw(weights * jnp.float32(1 + 1e-6), keys)
    np.testing.assert_array_equal(together, rounded)


def test_noise_of_neighbouring_keys_is_independent() -> None:
    noise = np.asarray(exponential(jnp.arange(2000, dtype=jnp.int32), 11, 500))
    assert np.isfinite(noise).all()
    assert (noise > 0).all()
    for a, b in ((noise[:-1], noise[1:]), (noise[:, :-1], noise[:, 1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.005
    # Mean and variance of the exponential distribution.
    assert abs(noise.mean() - 1) < 0.005
    assert abs(noise.var() - 1) < 0.02
