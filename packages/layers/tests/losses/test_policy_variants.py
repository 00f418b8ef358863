"""DAPO, GSPO, CISPO and Dr. GRPO against NumPy written from the papers' formulas, with gradients worked out by hand."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import RolloutBatch
from kanawa.errors import ConfigError
from kanawa_layers.losses.policy import (
    clipped_weight,
    per_row,
    per_sequence,
    per_token,
    sequence_ratio,
    token_ratio,
)
from kanawa_layers.models.policy_loss import PolicyLoss
from kanawa_layers.modifiers.language_model import ChoosePolicyLoss
from kanawa_layers.modifiers.policy_gradient import CISPO, DAPO, GSPO
from kanawa_layers.recipes.llama import llama

DRAW = np.random.default_rng(3)
ROWS, LENGTH = 6, 9
#: Where each row's completion begins and ends; one drew a single token, and the positions outside are never read.
SPANS = [(0, 9), (2, 3), (4, 9), (1, 5), (3, 8), (6, 9)]


def draws(spread=0.4):
    """Log-probabilities now and when drawn, advantages (one a row), and which tokens were drawn; float64."""
    old = -np.exp(DRAW.standard_normal((ROWS, LENGTH)))
    new = old + spread * DRAW.standard_normal((ROWS, LENGTH))
    gains = np.repeat(DRAW.standard_normal((ROWS, 1)), LENGTH, 1)
    drawn = np.zeros((ROWS, LENGTH))
    for row, (begin, end) in enumerate(SPANS):
        drawn[row, begin:end] = 1.0
    return new, old, gains, drawn


def dapo(new, old, gains, drawn, low, high):
    """arXiv:2503.14476, equation 8: tokens of all rows are averaged together."""
    loss, grad, count = 0.0, np.zeros_like(new), drawn.sum()
    for i, (begin, end) in enumerate(SPANS):
        for t in range(begin, end):
            r, a = np.exp(new[i, t] - old[i, t]), gains[i, t]
            loss -= min(r * a, np.clip(r, 1 - low, 1 + high) * a) / count
            is_free = (a >= 0 and r <= 1 + high) or (a < 0 and r >= 1 - low)
            grad[i, t] = -a * r / count if is_free else 0.0
    return loss, grad


def dr_grpo(new, old, gains, drawn, low, high):
    """arXiv:2503.20783: as GRPO, but divided by a constant length."""
    loss, grad = dapo(new, old, gains, drawn, low, high)
    scale = drawn.sum() / (ROWS * LENGTH)
    return loss * scale, grad * scale


def gspo(new, old, gains, drawn, low, high):
    """arXiv:2507.18071, equations 5 to 7; the gradient is equation 10's."""
    loss, grad = 0.0, np.zeros_like(new)
    for i, (begin, end) in enumerate(SPANS):
        length, a = end - begin, gains[i, 0]
        ratio = np.prod(np.exp(new[i, begin:end])) / np.prod(np.exp(old[i, begin:end]))
        s = ratio ** (1 / length)
        loss -= min(s * a, np.clip(s, 1 - low, 1 + high) * a) / ROWS
        if (a >= 0 and s <= 1 + high) or (a < 0 and s >= 1 - low):
            grad[i, begin:end] = -s * a / length / ROWS
    return loss, grad


def cispo(new, old, gains, drawn, low, high):
    """arXiv:2506.13585, equations 4 and 5: the clipped ratio is a constant, and every token has a gradient."""
    loss, grad, count = 0.0, np.zeros_like(new), drawn.sum()
    for i, (begin, end) in enumerate(SPANS):
        for t in range(begin, end):
            weight = min(max(np.exp(new[i, t] - old[i, t]), 1 - low), 1 + high)
            loss -= weight * gains[i, t] * new[i, t] / count
            grad[i, t] = -weight * gains[i, t] / count
    return loss, grad


FORMULAS = {
    "dapo": (dapo, token_ratio, per_token, 0.2, 0.28),
    "dr-grpo": (dr_grpo, token_ratio, per_row, 0.2, 0.2),
    "gspo": (gspo, sequence_ratio, per_sequence, 0.1, 0.12),
    "cispo": (cispo, clipped_weight, per_token, 1.0, 0.3),
    "cispo, bounded below": (cispo, clipped_weight, per_token, 0.2, 0.3),
}


@pytest.mark.parametrize(("formula", "objective", "aggregation", "low", "high"), list(FORMULAS.values()), ids=FORMULAS)
def test_values_and_gradients_are_those_of_the_paper(formula, objective, aggregation, low, high):
    new, old, gains, drawn = draws()

    def loss(logprobs):
        values, clipped = objective(logprobs, *(jnp.asarray(x, jnp.float32) for x in (old, gains, drawn)), low, high)
        total, weight = aggregation(values, jnp.asarray(drawn, jnp.float32))
        return total / weight, clipped

    (value, clipped), grad = jax.value_and_grad(loss, has_aux=True)(jnp.asarray(new, jnp.float32))
    wanted, by_hand = formula(new, old, gains, drawn, low, high)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(grad, by_hand, rtol=1e-5, atol=1e-7)
    assert 0 < (np.asarray(clipped) * drawn).sum() < drawn.sum(), "the bounds are never met, or always"
    if formula is not cispo:
        assert (by_hand[drawn > 0] == 0).any()


def test_the_loss_of_a_model_asks_the_objective():
    """Values that no other objective has, through a whole model and its gradient."""
    new, old, gains, drawn = draws(spread=0.05)
    ids = DRAW.integers(0, 11, (2, ROWS, LENGTH)).astype(np.int32)
    places = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), ids[0].shape)
    cfg = llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=16, vocab_size=11, tied=True)
    cfg.set(loss=PolicyLoss.Config(objective=sequence_ratio, clip_low=3e-4, clip_high=4e-4))
    model = cfg.build()
    params = kn.initialize(model, jax.random.key(0))
    numbers = [np.asarray(x, np.float32) for x in (drawn, gains, old)]
    batch = RolloutBatch(*ids, places, places * 0 + 1, *numbers, np.asarray(old, np.float32))
    outputs = kn.functional(model)(params, {}, batch, train=True, emit=("**.logprobs",))[1]
    (logprobs,) = outputs.emitted.values()
    wanted, _ = gspo(np.asarray(logprobs, np.float64), old, gains, drawn, 3e-4, 4e-4)
    assert outputs.total_loss() == pytest.approx(wanted, rel=1e-4)


class Chosen(kn.Config):
    attempts: int = 1
    overlong_tokens: int = 0
    new_tokens: int = 50
    reference: bool = True


class Experiment(kn.Config):
    model: kn.Module.Config | None = None
    rollouts: Chosen | None = None


def learning(**fields):
    cfg = llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=16, vocab_size=11)
    return ChoosePolicyLoss.Config(kl=0.1, truncation=2.0).build()(Experiment(model=cfg, **fields))


def test_the_modifiers_set_what_the_papers_say_and_nothing_else():
    dapo_loss = DAPO.Config().build()(learning(rollouts=Chosen()))
    loss = dapo_loss.model.loss
    assert (loss.objective, loss.aggregation, loss.clip_high, loss.kl) == (token_ratio, per_token, 0.28, 0.0)
    assert (dapo_loss.rollouts.attempts, dapo_loss.rollouts.overlong_tokens) == (4, 10)
    assert dapo_loss.rollouts.reference is False
    for kind, objective, aggregation in ((GSPO, sequence_ratio, per_sequence), (CISPO, clipped_weight, per_token)):
        loss = kind.Config().build()(learning()).model.loss
        assert (loss.objective, loss.aggregation) == (objective, aggregation)
        assert (loss.kl, loss.truncation) == (0.1, 2.0)
    with pytest.raises(ConfigError, match="gspo: nothing here learns from rewards yet; put --modify grpo:reward=NAME"):
        GSPO.Config().build()(Experiment())
