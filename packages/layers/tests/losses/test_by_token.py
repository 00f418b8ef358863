"""Cross entropy token by token: the same sums and gradients as the operation's, by any kernel; losses by source."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import SOURCE_LOSS, Batch
from kanawa.kernels.softmax_cross_entropy import softmax_cross_entropy
from kanawa_layers.losses.by_token import cross_entropy_by_token
from kanawa_layers.models.token_loss import CrossEntropy
from kanawa_layers.recipes.llama import llama

DRAW = np.random.default_rng(0)
ROWS, LENGTH, WIDTH, VOCAB = 4, 6, 16, 50
TARGETS = DRAW.integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)
WEIGHTS = DRAW.choice([0.0, 0.5, 1.0], (ROWS, LENGTH)).astype(np.float32)
OPERANDS = tuple(DRAW.standard_normal(s).astype(np.float32) for s in ((ROWS, LENGTH, WIDTH), (WIDTH, VOCAB)))


@pytest.mark.parametrize(
    "options", [{}, {"chunk_tokens": 5}, {"z_loss": 0.01, "label_smoothing": 0.1, "logit_cap": 4.0}]
)
def test_sums_and_gradients_are_the_operations_and_tokens_add_up(options):
    def plain(hidden, weight, weights):
        loss, count, extra = softmax_cross_entropy(hidden, weight, TARGETS, weights, **options)
        return loss / count, (loss, count, extra)

    def by_token(hidden, weight, weights):
        sums = cross_entropy_by_token(hidden, weight, TARGETS, weights, **options)
        return sums.loss / sums.weight, (sums[:3], sums.token_losses)

    every = (0, 1, 2)
    wanted, sums = jax.jit(jax.grad(plain, every, has_aux=True))(*OPERANDS, WEIGHTS)
    got, (same, each) = jax.jit(jax.grad(by_token, every, has_aux=True))(*OPERANDS, WEIGHTS)
    for one, other in zip(jax.tree.leaves((wanted, sums)), jax.tree.leaves((got, same)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
    alone = [
        softmax_cross_entropy(*OPERANDS, TARGETS, jnp.zeros_like(WEIGHTS).at[0, t].set(1.0), **options) for t in (0, 3)
    ]
    np.testing.assert_allclose(each[0, jnp.asarray([0, 3])], [loss for loss, _, _ in alone], rtol=1e-5)


def test_no_gradient_flows_through_the_losses_of_tokens():
    def total(hidden):
        return jnp.sum(cross_entropy_by_token(hidden, OPERANDS[1], TARGETS, jnp.asarray(WEIGHTS)).token_losses)

    assert not np.any(jax.grad(total)(OPERANDS[0]))


@pytest.mark.parametrize("train", [True, False])
def test_a_mixtures_losses_by_source_are_those_of_the_rows_alone_and_add_up(train):
    cfg = llama(num_layers=1, input_dim=WIDTH, num_heads=2, num_kv_heads=1, hidden_dim=16, vocab_size=VOCAB)
    model = cfg.set(loss=CrossEntropy.Config(z_loss=0.01)).build()
    params = kn.initialize(model, jax.random.key(0))
    ids = DRAW.integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    sources = np.eye(3, dtype=np.float32)[[0, 1, 1, 0]]

    def outputs(**fields):
        batch = Batch(ids, TARGETS, None, None, WEIGHTS)._replace(**fields)
        return kn.functional(model)(params, {}, batch, train=train)[1]

    mixed = outputs(sources=sources)
    by_source = {path: metric for path, metric in mixed.metrics.items() if SOURCE_LOSS in path}
    assert list(by_source) == [f"loss.{SOURCE_LOSS}{number}" for number in range(3)]
    for column, metric in enumerate(by_source.values()):
        alone = outputs(loss_weights=WEIGHTS * sources[:, column : column + 1])
        [loss] = alone.losses.values()
        np.testing.assert_allclose([metric.total, metric.weight], [loss.total, loss.weight], rtol=1e-5, atol=1e-6)
    [whole] = mixed.losses.values()
    np.testing.assert_allclose(sum(m.total for m in by_source.values()), whole.total, rtol=1e-5)
    assert not any(SOURCE_LOSS in path for path in outputs().metrics)
