"""Cuts of a batch's distributions: what each row keeps is its own settings' to say, whoever shares the batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa_runtime.serve.engine.token_sampler import cut_tail

VOCAB = 300
#: top-k, top-p, min-p and temperature of a row.
SETTINGS = {
    "nothing": (0, 1.0, 0.0, 1.0),
    "top-k": (7, 1.0, 0.0, 1.0),
    "one": (1, 1.0, 0.0, 1.0),
    "more than there are": (VOCAB + 5, 1.0, 0.0, 1.0),
    "top-p": (0, 0.7, 0.0, 1.0),
    "hardly any": (0, 1e-6, 0.0, 1.0),
    "both": (20, 0.5, 0.0, 1.0),
    "min-p": (0, 1.0, 0.2, 1.0),
    "all three": (50, 0.9, 0.05, 1.0),
    "greedy, with cuts": (3, 0.1, 0.0, 0.0),
}


def kept(names, logits):
    """Returns which tokens the rows of some settings keep, bool [B, V]."""
    top_k, top_p, min_p, temperature = (np.array(column) for column in zip(*map(SETTINGS.get, names), strict=True))
    cuts = (top_k.astype(np.int32), top_p.astype(np.float32), min_p.astype(np.float32), temperature > 0)
    return np.asarray(jax.jit(cut_tail)(jnp.asarray(logits), *cuts)) > -np.inf


def by_numpy(name, logits):
    top_k, top_p, min_p, _ = SETTINGS[name]
    left = np.sort(logits)[::-1][: top_k or VOCAB].astype(np.float64)
    weights = np.exp(left - left[0])
    enough = np.searchsorted(np.cumsum(weights), top_p * weights.sum()) if top_p < 1 else len(left) - 1
    return (logits >= left[enough]) & (np.exp(logits - left[0]) >= min_p)


@pytest.mark.parametrize("seed", range(3))
def test_each_row_keeps_its_own_whoever_shares_the_batch(seed):
    rng = np.random.default_rng(seed)
    names = list(SETTINGS)
    logits = rng.normal(0, 3, (len(names), VOCAB)).astype(np.float32)
    together = kept(names, logits)
    for row, name in enumerate(names):
        if name.startswith("greedy"):
            # Nobody draws from what it keeps, so that it is nobody's reason to look for more.
            continue
        alone = kept([name, "greedy, with cuts"], np.stack([logits[row], logits[-1]]))[0]
        np.testing.assert_array_equal(together[row], alone, err_msg=name)
        np.testing.assert_array_equal(together[row], by_numpy(name, logits[row]), err_msg=name)


def test_a_flat_row_without_a_cut_keeps_all_beside_one_with_a_cut():
    # Tokens so unlikely that a sum in float32 doesn't change by them.
    logits = np.full((2, VOCAB), -30.0, np.float32)
    logits[:, 5] = 0.0
    assert kept(["nothing", "top-p"], logits)[0].all()
