"""Targets drawn from the model: their gradient measures the Gauss-Newton diagonal, and is zero on average."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from kanawa.contracts import Batch, DrawnTargets
from kanawa_layers.models import token_loss
from kanawa_layers.models.head import UntiedHead
from kanawa_layers.models.token_loss import CrossEntropy, drawn_targets

ROWS, LENGTH, WIDTH, VOCAB, DRAWS = 2, 8, 3, 5, 4000


class Scoring(kn.Module):
    """The loss of its input as hidden states."""

    class Config(kn.Module.Config):
        head: UntiedHead.Config = UntiedHead.Config(input_dim=WIDTH, vocab_size=VOCAB)
        loss: CrossEntropy.Config = CrossEntropy.Config(z_loss=0.1, label_smoothing=0.1)

    def setup(self):
        self.add_child("head", self.config.head)
        self.add_child("loss", self.config.loss)

    def forward(self, x, batch):
        self.loss(x, self.head, batch)

    def drawn(self, x):
        return drawn_targets(self.head, x, self.next_key())


MODEL = Scoring.Config().build()
X = jax.random.normal(jax.random.key(0), (ROWS, LENGTH, WIDTH))
PARAMS = {"head": {"kernel": jax.random.normal(jax.random.key(1), (WIDTH, VOCAB))}, "loss": {}}
TARGETS = jax.random.randint(jax.random.key(2), (ROWS, LENGTH), 0, VOCAB)
WEIGHTS = jnp.ones((ROWS, LENGTH)).at[1, 4:].set(0.0)


def gradient(kind, key):
    def loss(params):
        batch = kind(TARGETS, TARGETS, None, None, WEIGHTS)
        return kn.functional(MODEL)(params, {}, X, batch, key=key, train=True)[1].total_loss()

    return jax.grad(loss)(PARAMS)["head"]["kernel"]


def test_the_square_of_the_gradient_is_the_gauss_newton_diagonal_on_average():
    keys = jax.random.split(jax.random.key(3), DRAWS)
    drawn = jax.jit(lambda: jax.lax.map(lambda key: gradient(DrawnTargets, key), keys, batch_size=200))()
    assert np.abs(gradient(Batch, keys[0])).max() > 0.05
    np.testing.assert_allclose(drawn.mean(0), 0.0, atol=0.01)
    count = float(WEIGHTS.sum())
    p = np.asarray(jax.nn.softmax(X @ PARAMS["head"]["kernel"]), np.float64)
    # J^T (diag(p) - p p^T) J of the mean loss; of a linear head J is the input.
    exact = np.einsum("btw,bte,btv->ev", np.asarray(WEIGHTS)[..., None], np.square(np.asarray(X)), p * (1 - p)) / count
    np.testing.assert_allclose(count * np.square(drawn).mean(0), exact, rtol=0.1, atol=2e-3)


def test_long_rows_are_drawn_in_parts(monkeypatch):
    monkeypatch.setattr(token_loss, "_DRAWN_TOGETHER", 2)
    sharp = {"head": {"kernel": 100.0 * PARAMS["head"]["kernel"]}}
    drawn, _ = kn.functional(MODEL, "drawn")({**sharp, "loss": {}}, {}, X, key=jax.random.key(4), train=True)
    assert drawn.shape == (ROWS, LENGTH)
    certain = np.argmax(np.asarray(X @ sharp["head"]["kernel"]), -1)
    assert (np.asarray(drawn) == certain).mean() > 0.9
