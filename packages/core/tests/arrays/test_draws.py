"""Draws by noise: of the right distribution, and the same in any shape."""

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.arrays.draws import gumbel, noisy_argmax


def test_draws_follow_the_softmax() -> None:
    logits = jnp.asarray([0.0, 1.0, -2.0, 3.0, -jnp.inf, -9.0])
    count = 200_000
    drawn = noisy_argmax(jnp.broadcast_to(logits, (count, 6)), jnp.arange(count, dtype=jnp.int32) * 7 - 3)
    seen = np.bincount(np.asarray(drawn), minlength=6)
    expected = np.asarray(jax.nn.softmax(logits)) * count
    assert seen[4] == 0
    wanted = expected[expected > 0]
    chi_square = float((((seen[expected > 0] - wanted) ** 2) / wanted).sum())
    # Four degrees of freedom: exceeded once in ten million times.
    assert chi_square < 38.0


def test_noise_depends_on_key_and_token_alone() -> None:
    keys = jnp.asarray([[3, -9], [2**31 - 1, 0]], jnp.int32)
    together = gumbel(keys, 300)
    assert together.shape == (2, 2, 300)
    alone = jax.jit(gumbel, static_argnums=1)(keys[1, 0], 77)
    np.testing.assert_array_equal(np.asarray(together[1, 0, :77]), np.asarray(alone))
    assert np.isfinite(np.asarray(together)).all()


def test_noise_of_neighbouring_keys_is_independent() -> None:
    noise = np.asarray(gumbel(jnp.arange(2000, dtype=jnp.int32), 500))
    for a, b in ((noise[:-1], noise[1:]), (noise[:, :-1], noise[:, 1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.005
    # Mean and variance of the standard Gumbel distribution.
    assert abs(noise.mean() - 0.5772) < 0.005
    assert abs(noise.var() - np.pi**2 / 6) < 0.01
