"""Rows of masked diffusion estimate a bound: for the true distribution of texts it is their entropy itself."""

import itertools
import math
from typing import ClassVar

import numpy as np
import pytest
from kanawa.testing.data_source import DataSourceConformance
from kanawa_runtime.data.errors import RowError
from kanawa_runtime.data.masked_diffusion import MaskedDiffusionRows
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.source import TextSource

TOKENS = RandomTokens.Config(vocab_size=50)


def rows(length=8, seed=3, **fields):
    return MaskedDiffusionRows.Config(source=TOKENS, sequence_length=length, seed=seed, **fields).build()


class TestMaskedDiffusionRows(DataSourceConformance):
    unsupported: ClassVar = {"next token": "hidden tokens are predicted where they stand"}

    def source(self):
        return rows(24)


def test_hidden_tokens_are_the_masks_and_weights_sum_to_the_tokens():
    source = rows()
    assert source.mask_id == 50 and source.vocab_size == 51
    for index in range(20):
        row, plain = source.row(index), TOKENS.clone().set(sequence_length=8).build().row(index)
        hidden = row["input_ids"] == 50
        assert hidden.any() and (hidden == (row["loss_weights"] > 0)).all()
        np.testing.assert_array_equal(row["target_ids"], plain["target_ids"])
        np.testing.assert_array_equal(row["input_ids"][~hidden], row["target_ids"][~hidden])
        np.testing.assert_allclose(row["loss_weights"].sum(), 8, rtol=1e-6)
        np.testing.assert_allclose(row["loss_weights"][hidden], 8 / hidden.sum(), rtol=1e-6)


def test_every_number_and_every_place_is_hidden_equally_often_and_levels_are_even():
    source = rows()
    hidden = np.array([source.row(index)["input_ids"] == 50 for index in range(800)])
    np.testing.assert_allclose(np.bincount(hidden.sum(1), minlength=9)[1:], 100, atol=2)
    np.testing.assert_allclose(hidden.mean(0), 4.5 / 8, atol=0.05)
    other = np.array([rows(seed=4).row(index)["input_ids"] == 50 for index in range(8)])
    assert (other != hidden[:8]).any()


def exact_bound(logp, length):
    """Returns the integral of the loss of absorbing diffusion, weight 1 / t, by the sum over all masks (no sampling).

    `logp(hidden)` is the sum of the log-probabilities of hidden tokens. Independent masks at a uniform t; the integral
    of t ** (n - 1) * (1 - t) ** (length - n) is a beta function.
    """
    total = 0.0
    for mask in itertools.product((False, True), repeat=length):
        n = sum(mask)
        if n:
            beta = math.gamma(n) * math.gamma(length - n + 1) / math.gamma(length + 1)
            total -= beta * logp(mask)
    return total


def test_the_weighted_mean_is_the_bound_and_of_true_conditionals_the_negative_log_likelihood():
    chance, length = np.random.default_rng(0), 5
    joint = chance.dirichlet(np.ones(2**length)).reshape((2,) * length)
    text = (1, 0, 0, 1, 1)

    def conditional(mask):
        seen = tuple(slice(None) if hidden else text[i] for i, hidden in enumerate(mask))
        rest = joint[seen] / joint[seen].sum()
        own = np.flatnonzero(mask)
        return sum(np.log(np.moveaxis(rest, k, 0)[text[own[k]]].sum()) for k in range(len(own)))

    bound = exact_bound(conditional, length)
    assert bound > -np.log(joint[text]), "tokens hidden together are predicted apart, so that it is a bound"
    source = MaskedDiffusionRows.Config(source=TOKENS, sequence_length=length, seed=1).build()
    drawn = [source.row(index) for index in range(3000)]
    weighted = [-conditional(row["loss_weights"] > 0) * row["loss_weights"].max() for row in drawn]
    np.testing.assert_allclose(np.mean(weighted), bound, rtol=0.03)
    # One token at a time in a random order is the chain rule: averaged over orders it is the likelihood itself.
    orders = [list(order) for order in itertools.permutations(range(length))]
    likelihood = 0.0
    for order in orders:
        for k in range(length):
            hidden = [i in order[k:] for i in range(length)]
            seen = tuple(slice(None) if h else text[i] for i, h in enumerate(hidden))
            rest, own = joint[seen] / joint[seen].sum(), np.flatnonzero(hidden).tolist()
            likelihood -= np.log(np.moveaxis(rest, own.index(order[k]), 0)[text[order[k]]].sum()) / len(orders)
    np.testing.assert_allclose(likelihood, -np.log(joint[text]), rtol=1e-9)
    np.testing.assert_allclose(bound, likelihood, rtol=1e-9)


def test_prompts_and_padding_are_never_hidden_and_each_text_has_its_own_level():
    text = TextSource.Config(sequence_length=256)
    source = MaskedDiffusionRows.Config(source=text, sequence_length=256, seed=0).build()
    shares = set()
    for index in range(12):
        row = source.row(index)
        for number in np.unique(row["segment_ids"]):
            own = row["segment_ids"] == number
            predicted = own & (text.build().row(index)["loss_weights"] > 0)
            np.testing.assert_allclose(row["loss_weights"][own].sum(), predicted.sum(), rtol=1e-5)
            assert (row["input_ids"][own & ~predicted] != source.mask_id).all()
            shares.add(round(float((row["input_ids"][own] == source.mask_id).mean()), 3))
    assert len(shares) > 10
    row = source.row(0)
    assert source.target_bytes(row["target_ids"], row["loss_weights"]) == pytest.approx(
        text.build().target_bytes(row["target_ids"], row["target_ids"] * 0 + 1.0), rel=0.3
    )


def test_a_text_with_the_id_of_a_hidden_token_is_refused():
    with pytest.raises(RowError, match=r"holds the id 3, which stands for a hidden token; set data.mask_id"):
        source = rows(64, mask_id=3)
        for index in range(40):
            source.row(index)
