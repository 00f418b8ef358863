"""Distillation: divergences against NumPy, chunks that change nothing, a teacher that never learns, own tokens."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Batch, RolloutBatch, without_companions
from kanawa.errors import ConfigError, ModuleError
from kanawa_layers.losses.distillation import divergence
from kanawa_layers.models.distillation import Distillation, HiddenStates
from kanawa_layers.models.reference import FrozenModel
from kanawa_layers.modifiers.language_model import DistillModifier

from .tiny_llama import TOKENS, logits, tiny


def made(**fields):
    teacher = FrozenModel.Config(model=tiny().set(loss=HiddenStates.Config()))
    module = tiny().set(loss=Distillation.Config(teacher=teacher, **fields)).build()
    return module, jax.jit(lambda k: kn.initialize(module, k))(jax.random.key(0))


def outputs(module, params, batch, train=True):
    run = jax.jit(lambda p, b: kn.functional(module)(p, {}, b, key=jax.random.key(1), train=train)[1])
    return run(params, batch)


def by_hand(student, teacher, mix, temperature):
    p, q = (np.exp(x / temperature) / np.exp(x / temperature).sum(-1, keepdims=True) for x in (teacher, student))
    kl = lambda a, b: (a * np.log(a / b)).sum(-1)  # noqa: E731
    if mix in (0.0, 1.0):
        return temperature**2 * (kl(q, p) if mix else kl(p, q))
    m = mix * p + (1 - mix) * q
    return temperature**2 * (mix * kl(p, m) + (1 - mix) * kl(q, m))


@pytest.mark.parametrize("mix", [0.0, 0.3, 1.0])
def test_divergences_are_those_of_numpy_and_vanish_for_equal_models(mix):
    student, teacher = np.random.default_rng(0).standard_normal((2, 5, 7))
    got = divergence(jnp.asarray(student), jnp.asarray(teacher), mix=mix, temperature=2.0)
    np.testing.assert_allclose(got, by_hand(student, teacher, mix, 2.0), rtol=1e-5)
    np.testing.assert_allclose(divergence(jnp.asarray(student), jnp.asarray(student), mix=mix), 0.0, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_the_loss_is_a_mean_over_weighted_tokens_whatever_the_chunks(chunk):
    module, params = made(mix=0.3, temperature=2.0, chunk=chunk, coefficient=0.5, data_weight=2.0)
    batch = Batch.of_tokens(TOKENS)
    weights = jnp.where(jnp.arange(batch.target_ids.shape[1]) > 2, 1.0, 0.0)
    batch = batch._replace(loss_weights=jnp.broadcast_to(weights, batch.target_ids.shape))
    got = outputs(module, params, batch)
    plain, teacher = tiny().build(), params["loss"]["teacher"]["model"]
    own = {name: x for name, x in params.items() if name != "loss"}
    predict = jax.jit(lambda p: kn.functional(plain, "predict")(p, {}, batch.input_ids)[0])
    both = [np.asarray(predict(p), np.float64) for p in (own, teacher)]
    weighed = np.asarray(batch.loss_weights)
    wanted = float((by_hand(*both, 0.3, 2.0) * weighed).sum() / weighed.sum())
    assert float(got.losses["loss.distillation"].value()) == pytest.approx(0.5 * wanted, rel=1e-4)
    entropy = jax.jit(lambda p: kn.functional(plain)(p, {}, batch)[1].losses["loss.cross_entropy"].value())(own)
    assert float(got.losses["loss.cross_entropy"].value()) == pytest.approx(2.0 * float(entropy), rel=1e-5)
    grads = jax.jit(jax.grad(lambda p: outputs(module, {**p, "loss": params["loss"]}, batch).total_loss()))(own)
    whole, _ = made(mix=0.3, temperature=2.0, chunk=8, coefficient=0.5, data_weight=2.0)
    same = jax.jit(jax.grad(lambda p: outputs(whole, {**p, "loss": params["loss"]}, batch).total_loss()))(own)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), grads, same)


def test_only_the_student_learns_and_it_comes_to_agree_with_the_teacher():
    module, params = made(data_weight=0.0)
    specs = flatten_paths(kn.param_specs(module))
    assert {path.split(".")[0] for path, spec in specs.items() if not spec.trainable} == {"loss"}
    batch = Batch.of_tokens(TOKENS)

    @jax.jit
    def step(own):
        value, grads = jax.value_and_grad(lambda p: outputs(module, {**p, "loss": params["loss"]}, batch).total_loss())(
            own
        )
        return jax.tree.map(lambda p, g: p - 0.3 * g, own, grads), value

    own = {name: x for name, x in params.items() if name != "loss"}
    values = []
    for _ in range(10):
        own, value = step(own)
        values.append(float(value))
    assert values[-1] < 0.7 * values[0]
    same = {**params["loss"]["teacher"]["model"], "loss": params["loss"]}
    assert float(outputs(module, same, batch).total_loss()) == pytest.approx(0.0, abs=1e-5)


def test_rollouts_have_no_cross_entropy_and_training_alone_asks_the_teacher():
    module, params = made(mix=1.0)
    plain = Batch.of_tokens(TOKENS)
    ids = plain.input_ids
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32), ids.shape)
    numbers = plain.loss_weights
    rollouts = RolloutBatch(ids, plain.target_ids, positions, positions * 0 + 1, numbers, numbers, -numbers)
    assert list(outputs(module, params, rollouts).losses) == ["loss.distillation"]
    served = without_companions(module.config).build()
    own = {name: x for name, x in params.items() if name != "loss"}
    assert list(outputs(served, own, plain, train=False).losses) == ["loss.cross_entropy"]
    np.testing.assert_allclose(logits(served, own), logits(module, params), atol=1e-6)
    with pytest.raises(ModuleError, match="has no teacher; name one with --modify distill:teacher=FOLDER"):
        outputs(served, own, plain)


def test_teachers_of_other_tokens_and_folders_that_are_none_are_refused(tmp_path):
    class Experiment(kn.Config):
        model: kn.Config = tiny()

    with pytest.raises(ConfigError, match=r"teacher.vocab_size is 2048 \(llama-tiny\), but the student's is 61"):
        DistillModifier.Config(teacher="llama-tiny").build()(Experiment())
    with pytest.raises(ConfigError, match=r"some/where is no folder"):
        DistillModifier.Config(teacher="some/where").build()(Experiment())
    with pytest.raises(ConfigError, match="holds no model of a known kind"):
        DistillModifier.Config(teacher=str(tmp_path)).build()(Experiment())
