"""What Sequences derives from the facts it is given: positions with and without a cache, and who owns a token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa.contracts import Sequences, token_of_each_row

LENGTH = 12


def positions(**facts):
    return np.asarray(Sequences(**facts).token_positions(LENGTH))


def test_without_facts_a_row_counts_from_zero():
    assert positions().tolist() == [list(range(LENGTH))]


def test_given_positions_win():
    given_ = jnp.arange(LENGTH)[None] % 5
    assert Sequences(positions=given_, lengths=jnp.int32(3)).token_positions(LENGTH) is given_


@pytest.mark.parametrize("start", [0, 7])
def test_rows_in_step_continue_at_the_scalar_length(start):
    assert positions(lengths=jnp.int32(start)).tolist() == [list(range(start, start + LENGTH))]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=4))
def test_each_row_continues_at_its_own_length(lengths):
    found = positions(lengths=jnp.array(lengths, jnp.int32))
    assert found.tolist() == [list(range(n, n + LENGTH)) for n in lengths]


RAGGED = st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(lambda counts: 0 < sum(counts) <= LENGTH)


def ragged(counts, cached):
    starts = jnp.array([0, *np.cumsum(counts)], jnp.int32)
    return Sequences(query_starts=starts, lengths=jnp.array(cached, jnp.int32))


@given(RAGGED, st.data())
def test_a_ragged_row_is_its_sequences_one_after_another(counts, data):
    cached = [data.draw(st.integers(0, 30)) for _ in counts]
    sequences = ragged(counts, cached)
    owners = [i for i, count in enumerate(counts) for _ in range(count)]
    expected = [cached[i] + k for i, count in enumerate(counts) for k in range(count)]
    used = sum(counts)
    assert np.asarray(sequences.token_owners(LENGTH))[:used].tolist() == owners
    assert np.asarray(sequences.token_positions(LENGTH))[0, :used].tolist() == expected


@given(RAGGED)
def test_tokens_past_the_last_sequence_have_an_owner_in_range(counts):
    owners = np.asarray(ragged(counts, [0] * len(counts)).token_owners(LENGTH))
    assert owners.min() >= 0
    assert owners.max() < len(counts)


def test_owners_need_a_ragged_layout():
    with pytest.raises(ValueError, match="only rows with query_starts have owners"):
        Sequences().token_owners(4)


def test_it_is_traceable_with_facts_missing():
    found = jax.jit(lambda s: s.token_positions(LENGTH))(Sequences(lengths=jnp.array([2, 5], jnp.int32)))
    assert found.dtype == jnp.int32
    assert found[:, 0].tolist() == [2, 5]


def test_positions_are_int32_whatever_the_lengths_are():
    assert Sequences().token_positions(3).dtype == jnp.int32
    assert Sequences(lengths=jnp.int32(1)).token_positions(3).dtype == jnp.int32


def test_some_tokens_of_each_row_are_taken_in_the_order_they_are_asked_for():
    x = jnp.arange(2 * LENGTH * 3).reshape(2, LENGTH, 3)
    places = np.asarray([[4, 0, 4], [1, 2, LENGTH - 1]])
    np.testing.assert_array_equal(token_of_each_row(x, jnp.asarray(places)), np.asarray(x)[[[0], [1]], places])
    np.testing.assert_array_equal(token_of_each_row(x, jnp.asarray([4, 1])), np.asarray(x)[[0, 1], [4, 1]][:, None])
