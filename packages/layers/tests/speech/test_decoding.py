"""Decoding of CTC against sums over all alignments, and the word error rate by hand."""

import itertools
from collections import defaultdict

import numpy as np
import pytest
from kanawa.errors import UsageError
from kanawa_layers.speech.ctc_decoding import best_path, prefix_beam
from kanawa_layers.speech.word_errors import edit_distance, word_error_rate


def collapsed(path):
    merged = [t for t, before in zip(path, (None, *path), strict=False) if t != before]
    return tuple(t for t in merged if t != 0)


def drawn(seed, frames=5, ids=3):
    logits = 2.0 * np.random.default_rng(seed).standard_normal((frames, ids))
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_has_the_probabilities_of_all_alignments(seed):
    logs, exact = drawn(seed), defaultdict(float)
    for path in itertools.product(range(3), repeat=5):
        exact[collapsed(path)] += np.exp(logs[range(5), path].sum())
    found = prefix_beam(logs, 1000)
    assert {labels: np.exp(log) for labels, log in found if log > -np.inf} == pytest.approx(exact)
    assert [log for _, log in found] == sorted((log for _, log in found), reverse=True)
    narrow = prefix_beam(logs, 4)
    assert narrow[0][0] == found[0][0]
    assert all(np.exp(log) <= exact[labels] + 1e-12 for labels, log in narrow)


def test_the_best_path_merges_repeats_and_drops_blanks_within_a_rows_frames():
    ids = np.array([[1, 1, 0, 1, 2, 2, 0, 2], [0, 2, 2, 0, 0, 1, 1, 1]])
    assert best_path(np.eye(3)[ids], np.array([8, 5])) == [(1, 1, 2, 2), (2,)]


def test_a_beam_finds_labels_that_the_best_path_misses():
    # The likeliest path is all blanks (0.36), the likeliest labels are one 1 (0.64).
    logs = np.log(np.array([[0.6, 0.4], [0.6, 0.4]]))
    assert best_path(logs[None], np.array([2])) == [()]
    labels, log = prefix_beam(logs, 2)[0]
    assert labels == (1,) and np.exp(log) == pytest.approx(0.64)


def test_word_error_rate():
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance([], [1, 2]) == edit_distance([1, 2], []) == 2
    assert word_error_rate(["a b c d", "e"], ["a x c", "e f"]) == 3 / 5
    with pytest.raises(UsageError, match="no words"):
        word_error_rate([" "], ["a"])
