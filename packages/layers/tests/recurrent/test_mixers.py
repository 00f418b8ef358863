"""What every recurrent mixer promises: pieces equal the whole, segments equal rows of their own, padding is nothing."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import map_paths
from kanawa.contracts import Sequences
from kanawa.errors import ModuleError
from kanawa_layers.recurrent.gated_delta_net import GatedDeltaNet
from kanawa_layers.recurrent.griffin import GriffinRecurrence
from kanawa_layers.recurrent.kimi_delta import KimiDeltaAttention, channel_delta
from kanawa_layers.recurrent.lstm import LSTM
from kanawa_layers.recurrent.mamba2 import Mamba2
from kanawa_layers.recurrent.rattention import RAttention

MIXERS = {
    "mamba2": Mamba2.Config(num_heads=4, num_groups=2, state_dim=8, chunk_length=4),
    "gated-delta-net": GatedDeltaNet.Config(num_heads=4, num_key_heads=2, chunk_length=4),
    "kimi-delta": KimiDeltaAttention.Config(num_heads=2, value_dim=6, chunk_length=4),
    "griffin": GriffinRecurrence.Config(num_heads=2),
    "lstm": LSTM.Config(hidden_dim=8),
    "rattention": RAttention.Config(num_heads=4, num_kv_heads=2, window=3, chunk_length=4),
}
LENGTH = 11
X = jax.random.normal(jax.random.key(1), (3, LENGTH, 16))


class Bundle:
    """A mixer with random parameters, norms and decays included, and its compiled call.

    Compiling takes most of the time, so that the tests share a few shapes: [3, 11] without a cache, and 5 or 1 tokens
    with every fact about them.
    """

    def __init__(self, cfg: kn.Config) -> None:
        self.module = cfg.clone().set(input_dim=16).build(name="layer")
        rng = np.random.default_rng(5)
        draw = lambda _, spec: jnp.asarray(0.4 * rng.standard_normal(spec.shape), spec.dtype)  # noqa: E731
        self.params = map_paths(draw, kn.param_specs(self.module))
        self.run = jax.jit(lambda p, *given: kn.functional(self.module)(p, {}, *given)[0])

    def __call__(self, x, sequences, cache=None):
        return self.run(self.params, x, sequences, cache)

    def extend(self, starts, counts, cache, length):
        """Feeds X[starts : starts + counts] of each row, padded to `length` with rubbish, into rows 4, 0, 2."""
        places = jnp.minimum(starts[:, None] + jnp.arange(length)[None], LENGTH - 1)
        x = jnp.take_along_axis(X, places[..., None], axis=1)
        real = (jnp.arange(length)[None] < counts[:, None]).astype(jnp.int32)
        y, cache = self(x, Sequences(segment_ids=real, lengths=starts, slots=jnp.array([4, 0, 2])), cache)
        return y * real[..., None].astype(y.dtype), places, real, cache

    def empty(self, rows, fill=0.0):
        spec = self.module.cache_spec(rows, 16, "float32")
        return {name: jnp.full(s.shape, fill, s.dtype) for name, s in spec.items()}


@pytest.fixture(scope="module", params=MIXERS, ids=str)
def bundle(request):
    return Bundle(MIXERS[request.param])


@pytest.fixture(scope="module")
def whole(bundle):
    return bundle(X, Sequences())[0]


def check(whole, y, places, real):
    wanted = jnp.take_along_axis(whole, places[..., None], axis=1) * real[..., None].astype(y.dtype)
    np.testing.assert_allclose(y, wanted, atol=2e-5)


@pytest.mark.parametrize("counts", [(5, 5, 5), (1, 5, 3)], ids=str)
def test_prefill_in_pieces_then_decoding_equals_the_whole(bundle, whole, counts):
    # The cache starts full of rubbish: rows of length 0 must not see it, and rows of others must stay.
    cache, counts = bundle.empty(5, fill=7.0), jnp.array(counts)
    done = jnp.zeros_like(counts)
    for take, length in ((counts, 5), (jnp.array([5, 1, 4]), 5), (jnp.ones_like(counts), 1)):
        y, places, real, cache = bundle.extend(done, take, cache, length)
        check(whole, y, places, real)
        done = done + take
    assert all(np.all(array[jnp.array([1, 3])] == 7.0) for array in cache.values())


def test_rows_in_step_need_no_more_than_a_scalar_length(bundle, whole):
    cache = bundle.empty(3)
    for step in range(5):
        y, cache = bundle(X[:, step : step + 1], Sequences(lengths=jnp.asarray(step)), cache)
    np.testing.assert_allclose(y, whole[:, 4:5], atol=2e-5)


def test_packed_segments_equal_rows_of_their_own(bundle, whole):
    packed = jnp.concatenate([X[:1, :4], X[1:2, :5], jnp.ones((1, 2, 16))], axis=1)
    segments = jnp.array([[1] * 4 + [2] * 5 + [0] * 2])
    positions = jnp.array([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0]])
    y = bundle(packed, Sequences(positions, segments))[0]
    np.testing.assert_allclose(y[:, :4], whole[:1, :4], atol=2e-5)
    np.testing.assert_allclose(y[:, 4:9], whole[1:2, :5], atol=2e-5)


def test_the_future_does_not_reach_back(bundle, whole):
    other = bundle(jnp.concatenate([X[:, :6], X[::-1, 6:]], 1), Sequences())[0]
    np.testing.assert_allclose(other[:, :6], whole[:, :6], atol=1e-6)
    assert np.abs(other[0, 6:] - whole[0, 6:]).max() > 1e-3


def test_a_ragged_row_is_refused(bundle):
    with pytest.raises(ModuleError, match="has a state for each row"):
        bundle(X[:1], Sequences(lengths=jnp.zeros(2, int), query_starts=jnp.array([0, 4, 11])), bundle.empty(2))


def test_starts_are_found_without_positions():
    bundle = Bundle(MIXERS["griffin"])
    segments = jnp.array([[1] * 4 + [2] * 7] * 3)
    positions = jnp.concatenate([jnp.arange(4), jnp.arange(7)])[None].repeat(3, axis=0)
    with_positions, without = (bundle(X, Sequences(p, segments))[0] for p in (positions, None))
    np.testing.assert_allclose(with_positions, without, atol=1e-6)


def test_channel_delta_is_the_recurrence_token_by_token():
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((2, 7, 2, 4)) for _ in range(2))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v, beta = rng.standard_normal((2, 7, 2, 3)), rng.uniform(0.1, 1, (2, 7, 2))
    decay = rng.uniform(0.0, 1, (2, 7, 2, 4)) ** 8
    start = rng.standard_normal((2, 2, 4, 3))
    state, expected = start.copy(), np.zeros_like(v)
    for t in range(7):
        for row in range(2):
            for head in range(2):
                key, held = k[row, t, head], decay[row, t, head][:, None] * state[row, head]
                held = held + beta[row, t, head] * np.outer(key, v[row, t, head] - key @ held)
                state[row, head], expected[row, t, head] = held, q[row, t, head] @ held
    operands = (jnp.asarray(x, jnp.float32) for x in (q, k, v, np.log(decay), beta, start))
    out, final = channel_delta(*operands, None, 3)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_allclose(final, state, atol=1e-5)
