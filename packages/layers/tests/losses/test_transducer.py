"""The transducer's loss against a sum over every alignment, and its gradient against differences."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from kanawa_layers.losses.transducer import transducer

#: Frames and labels of each row.
CASES = [(4, 3), (1, 2), (4, 0), (3, 3), (2, 1)]
FRAMES, LABELS = 4, 3


def drawn(seed=0):
    logits = np.random.default_rng(seed).standard_normal((len(CASES), FRAMES, LABELS + 1, 3))
    logs = jax.nn.log_softmax(jnp.asarray(logits, jnp.float32))
    return logs[..., 0], logs[:, :, :LABELS, 1]


def over_all_alignments(blank, label, frames, labels):
    """-log of the summed probability of every order of `frames` blanks and `labels` labels that ends in a blank."""
    total = 0.0
    for places in itertools.combinations(range(frames - 1 + labels), labels):
        t = u = 0
        log = 0.0
        for step in range(frames - 1 + labels):
            log += label[t, u] if step in places else blank[t, u]
            t, u = (t, u + 1) if step in places else (t + 1, u)
        total += np.exp(log + blank[t, u])
    return -np.log(total)


def test_it_is_the_sum_over_all_alignments():
    blank, label = drawn()
    frames, labels = np.array(CASES).T
    actual = jax.jit(transducer)(blank, label, frames, labels)
    wanted = [over_all_alignments(*(np.asarray(x[i], np.float64) for x in (blank, label)), *CASES[i]) for i in range(5)]
    np.testing.assert_allclose(actual, wanted, rtol=1e-5)


def test_its_gradient_is_that_of_differences_and_zero_past_the_ends():
    blank, label = drawn(1)
    frames, labels = np.array(CASES).T
    loss = jax.jit(lambda b, x: jnp.sum(transducer(b, x, frames, labels)))
    grads = jax.jit(jax.grad(loss, argnums=(0, 1)))(blank, label)
    generator = np.random.default_rng(2)
    for _ in range(5):
        towards = [jnp.asarray(generator.standard_normal(x.shape), jnp.float32) for x in (blank, label)]
        step = 1e-2
        ahead, back = (loss(blank + s * towards[0], label + s * towards[1]) for s in (step, -step))
        slope = sum(jnp.sum(g * t) for g, t in zip(grads, towards, strict=True))
        np.testing.assert_allclose((ahead - back) / (2 * step), slope, rtol=5e-3, atol=2e-3)
    for row, (t, u) in enumerate(CASES):
        assert not np.any(grads[0][row, t:]) and not np.any(grads[0][row, :, u + 1 :])
        assert not np.any(grads[1][row, t:]) and not np.any(grads[1][row, :, u:])
        # A gradient is minus the probability of the step: every alignment makes one blank a frame.
        np.testing.assert_allclose(-grads[0][row].sum(1)[:t], 1.0, rtol=1e-4)


def test_a_row_without_frames_has_no_loss_and_no_gradient():
    blank, label = drawn()
    loss = lambda b: transducer(b, label, np.zeros(5, np.int32), np.ones(5, np.int32))  # noqa: E731
    assert np.isinf(loss(blank)).all()
    grads = jax.grad(lambda b: jnp.sum(jnp.where(jnp.isinf(loss(b)), 0.0, loss(b))))(blank)
    assert not np.any(grads)


def test_the_backward_pass_stores_one_lattice_beside_its_inputs():
    from jax._src.ad_checkpoint import saved_residuals

    blank, label = jnp.zeros((2, 40, 11)), jnp.zeros((2, 40, 10))
    sizes = np.array([40, 30]), np.array([10, 5])
    held = saved_residuals(lambda b, x: jnp.sum(transducer(b, x, *sizes)), blank, label)
    large = [aval.shape for aval, _ in held if np.prod(aval.shape) >= 2 * 40 * 10]
    # Diagonals of both inputs, and of the forward variables.
    assert len(large) <= 5, large
