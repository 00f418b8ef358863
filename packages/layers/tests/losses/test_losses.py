"""Losses against brute force and formulas in NumPy, at ordinary and at extreme values."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa_layers.losses.binary import binary_cross_entropy, focal
from kanawa_layers.losses.contrastive import sigmoid_contrastive, softmax_contrastive
from kanawa_layers.losses.ctc import ctc
from kanawa_layers.losses.distillation import kl_divergence

DRAW = np.random.default_rng(0).standard_normal


def softmax(x):
    odds = np.exp(x - x.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


def all_alignments(logits, labels, blank=0):
    """-log of the summed probability of every path that collapses to the labels."""
    probs, total = softmax(logits.astype(np.float64)), 0.0
    for path in itertools.product(range(logits.shape[1]), repeat=logits.shape[0]):
        merged = [t for t, before in zip(path, (None, *path), strict=False) if t != before]
        if [t for t in merged if t != blank] == list(labels):
            total += np.prod(probs[range(len(path)), path])
    return -np.log(total) if total else np.inf


CASES = [(4, [1, 2]), (4, [1, 1]), (3, [2]), (4, []), (2, [1, 1]), (1, [2])]


def test_ctc_is_the_sum_over_all_alignments():
    logits = 2.0 * DRAW((len(CASES), 4, 3), np.float32)
    labels = np.zeros((len(CASES), 3), np.int32)
    for row, (_, wanted) in enumerate(CASES):
        labels[row, : len(wanted)] = wanted
        labels[row, len(wanted) :] = 2  # Padding must not matter.
    frames, counts = np.array([t for t, _ in CASES]), np.array([len(x) for _, x in CASES])
    actual, grad = jax.jit(
        lambda x: (ctc(x, frames, labels, counts), jax.grad(lambda y: jnp.sum(ctc(y, frames, labels, counts)[:4]))(x))
    )(logits)
    wanted = [all_alignments(logits[i, :t], x) for i, (t, x) in enumerate(CASES)]
    np.testing.assert_allclose(actual, wanted, rtol=1e-5)
    assert np.isinf(actual[4]), "two equal labels need a blank between them, so three frames"
    assert np.isfinite(grad).all()
    np.testing.assert_array_equal(grad[2, 3:], 0.0)


def test_ctc_survives_certainty():
    logits = jnp.zeros((1, 6, 3)).at[0, :, 1].set(1e4)
    args = (np.array([6]), np.array([[1, 2]]), np.array([2]))
    value, grad = jax.value_and_grad(lambda x: ctc(x, *args)[0])(logits)
    assert 9e3 < value < 1.1e4
    assert np.isfinite(grad).all()


def test_kl_divergence():
    student, teacher = DRAW((5, 7), np.float32), DRAW((5, 7), np.float32)
    p, q = softmax(teacher / 2.0), softmax(student / 2.0)
    np.testing.assert_allclose(
        kl_divergence(student, teacher, temperature=2.0), 4.0 * (p * np.log(p / q)).sum(-1), rtol=1e-4
    )
    np.testing.assert_allclose(
        kl_divergence(student, teacher, temperature=2.0, reverse=True), 4.0 * (q * np.log(q / p)).sum(-1), rtol=1e-4
    )
    np.testing.assert_allclose(kl_divergence(teacher, teacher), 0.0, atol=1e-6)
    to_teacher = jax.grad(lambda t: kl_divergence(student, t).sum())(jnp.asarray(teacher))
    np.testing.assert_array_equal(to_teacher, 0.0)


def test_softmax_contrastive_is_cross_entropy_both_ways():
    left, right = DRAW((4, 3), np.float32), 5.0 * DRAW((4, 3), np.float32)
    cosines = (left / np.linalg.norm(left, axis=1, keepdims=True)) @ (right / np.linalg.norm(right, axis=1)[:, None]).T
    logits = 10.0 * cosines
    wanted = -0.5 * (np.log(np.diag(softmax(logits))) + np.log(np.diag(softmax(logits.T))))
    np.testing.assert_allclose(softmax_contrastive(left, right, 10.0), wanted, rtol=1e-4)
    odds = 1.0 / (1.0 + np.exp(-(2 * np.eye(4) - 1) * (logits - 3.0)))
    np.testing.assert_allclose(sigmoid_contrastive(left, right, 10.0, -3.0), -np.log(odds).sum(1), rtol=1e-4)


def test_binary_and_focal():
    logits = np.array([-3.0, -0.5, 0.0, 2.0, 500.0, -500.0], np.float32)
    targets = np.array([0, 1, 1, 0, 1, 0])
    p = 1.0 / (1.0 + np.exp(-logits[:4].astype(np.float64)))
    right = np.where(targets[:4] == 1, p, 1 - p)
    np.testing.assert_allclose(binary_cross_entropy(logits, targets)[:4], -np.log(right), rtol=1e-5)
    smooth = binary_cross_entropy(logits, targets, label_smoothing=0.1)[:4]
    y = np.where(targets[:4] == 1, 0.95, 0.05)
    np.testing.assert_allclose(smooth, -(y * np.log(p) + (1 - y) * np.log(1 - p)), rtol=1e-5)
    weight = np.where(targets[:4] == 1, 0.25, 0.75)
    np.testing.assert_allclose(focal(logits, targets)[:4], -weight * (1 - right) ** 2 * np.log(right), rtol=1e-5)
    np.testing.assert_allclose(
        focal(logits, targets, gamma=0.0, alpha=None), binary_cross_entropy(logits, targets), atol=1e-6
    )
    assert np.isfinite(jax.grad(lambda x: focal(x, targets).sum())(jnp.asarray(logits))).all()


@pytest.mark.parametrize("call", [binary_cross_entropy, focal])
def test_losses_are_fp32_whatever_comes_in(call):
    assert call(jnp.ones(3, jnp.bfloat16), jnp.array([True, False, True])).dtype == jnp.float32
