"""The random numbers of a request: pinned, since a seed has to give the same text in any version."""

import numpy as np
from kanawa_runtime.serve.engine.sequence import BLOCK, random_block


def test_a_seed_gives_the_same_numbers_for_ever():
    assert random_block(0, 0)[:3].tolist() == [0.011546730995178223, 0.24154919385910034, 0.11142581701278687]
    assert random_block(2**63 + 5, 7).dtype == np.float32


def test_blocks_and_seeds_are_independent_and_uniform():
    drawn = np.array([[random_block(seed, index) for index in range(20)] for seed in range(20)])
    assert drawn.shape == (20, 20, BLOCK)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert np.unique(drawn).size > 0.99 * drawn.size
    assert np.histogram(drawn, bins=10, range=(0, 1))[0].min() > 0.95 * drawn.size / 10
    assert abs(np.corrcoef(drawn.reshape(400, BLOCK))[np.triu_indices(400, 1)]).mean() < 0.15
