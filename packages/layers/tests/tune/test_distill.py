"""Distillation: the divergence vanishes for equal models, only the student learns, and it comes to agree."""

import functools

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Batch
from kanawa.errors import KanawaError
from kanawa_layers.tune.distill import Distilled

from .tiny_llama import TOKENS, logits, tiny


@functools.cache
def made(coefficient=4.0):
    module = Distilled.Config(
        vocab_size=61, input_dim=32, student=tiny(), teacher=tiny(), coefficient=coefficient, temperature=2.0
    ).build()
    return module, jax.jit(lambda k: kn.initialize(module, k))(jax.random.key(0))


def terms(module, params):
    _, outputs = kn.functional(module)(params, {}, Batch.of_tokens(TOKENS), key=jax.random.key(1), train=True)
    return outputs.losses["student.loss.cross_entropy"].value(), outputs.losses["distillation"].value()


def test_only_the_student_learns_and_it_comes_to_agree_with_the_teacher():
    module, params = made()
    specs = flatten_paths(kn.param_specs(module))
    assert {path.split(".")[0] for path, spec in specs.items() if spec.trainable} == {"student"}

    @jax.jit
    def step(student):
        def loss(student):
            own, distilled = terms(module, {**params, "student": student})
            return own + distilled, (own, distilled)

        (_, parts), grads = jax.value_and_grad(loss, has_aux=True)(student)
        return jax.tree.map(lambda p, g: p - 0.1 * g, student, grads), parts

    student, first = step(params["student"])
    for _ in range(9):
        student, last = step(student)
    assert float(first[1]) > 0.01
    assert float(last[1]) < 0.7 * float(first[1])
    assert float(last[0]) < float(first[0])
    same = {"student": params["teacher"], "teacher": params["teacher"]}
    assert float(jax.jit(lambda p: terms(module, p)[1])(same)) == pytest.approx(0.0, abs=1e-5)


def test_outside_of_training_it_is_the_student(plain):
    module, params = made()
    twin, _, _ = plain
    np.testing.assert_allclose(logits(module, params), logits(twin, params["student"]), atol=1e-5)
    _, outputs = jax.eval_shape(lambda p: kn.functional(module)(p, {}, Batch.of_tokens(TOKENS), train=False), params)
    assert list(outputs.losses) == ["student.loss.cross_entropy"]


def test_vocabularies_that_differ_are_named():
    cfg = Distilled.Config(vocab_size=61, input_dim=32, student=tiny(), teacher=tiny().set(vocab_size=62))
    with pytest.raises(KanawaError, match=r"teacher\.vocab_size is 62, but the distilled model's is 61"):
        cfg.freeze()
