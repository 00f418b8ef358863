"""Conformers: padding isn't heard, both heads learn and decode, and their parts equal plain formulas."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.contracts import Sequences, SpeechBatch
from kanawa.errors import ModuleError
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_layers.losses.transducer import transducer
from kanawa_layers.models.speech_recogniser import edit_distances
from kanawa_layers.recipes.conformer import conformer
from kanawa_layers.speech.conformer import RelativeAttention
from kanawa_layers.speech.heads import CTCHead, TransducerHead
from kanawa_layers.speech.word_errors import edit_distance

FOLDER = Path(__file__).parent.parent / "fixtures" / "parakeet_ctc"
HEADS = {
    "ctc": CTCHead.Config,
    "rnnt": lambda: TransducerHead.Config(prediction_dim=16, joint_dim=16, frames_together=3),
}
SECONDS = np.arange(6400) / 16_000
SAMPLES = np.stack([np.sin(2 * np.pi * f * SECONDS) for f in (300, 700, 1500, 3000)]).astype(np.float32)
SAMPLES += 0.05 * np.random.default_rng(0).standard_normal(SAMPLES.shape).astype(np.float32)
LENGTHS = np.array([6400, 6400, 4800, 0], np.int32)
TARGETS = np.array([[1, 2, 3], [4, 4, 0], [2, 0, 0], [0, 0, 0]], np.int32)
BATCH = SpeechBatch(SAMPLES, LENGTHS, TARGETS, (TARGETS > 0).astype(np.float32))


@functools.cache
def made(head):
    cfg = conformer(
        num_layers=2, input_dim=32, num_heads=2, vocab_size=6, window=5, halved=2, channels=8, num_mels=16,
        head=HEADS[head](),
    )  # fmt: skip
    model = cfg.build()
    return model, *(
        jax.jit(lambda k, of=of: of(model, k))(jax.random.key(0)) for of in (kn.initialize, kn.initial_state)
    )


def test_logits_of_padded_rows_equal_those_of_transformers():
    stored = HuggingFaceStore().load(FOLDER)
    with np.load(FOLDER / "logits.npz") as theirs, np.load(FOLDER / "further.npz") as further:
        features, saved = theirs["input_features"], dict(further)
    model, params, state = stored.config.build(), unflatten_paths(stored.params), unflatten_paths(stored.state)
    logits = jax.jit(kn.functional(model, "predict"))(params, state, features, saved["num_frames"])[0]
    for row, count in enumerate(-(-saved["num_frames"] // 4)):
        np.testing.assert_allclose(logits[row, :count], saved["logits"][row, :count], atol=1e-4)


@pytest.mark.parametrize("head", HEADS)
def test_it_learns_and_decodes_what_it_learned(head):
    model, params, state = made(head)

    @jax.jit
    def step(params, state):
        def loss(p):
            _, out = kn.functional(model)(p, state, BATCH, key=jax.random.key(1), train=True)
            return out.total_loss(), (kn.next_state(state, out), out.metrics)

        (value, (state, metrics)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        moved = jax.tree.map(lambda p, g: p - 0.01 * g / (1e-6 + jnp.sqrt(jnp.mean(g * g))), params, grads)
        return moved, state, value, grads, metrics

    after, moved, first, grads, metrics = step(params, state)
    gone = [path for path, g in flatten_paths(grads).items() if not float(jnp.abs(g).max()) > 0]
    assert not gone
    assert float(metrics["too_short"].value()) == 0
    for _ in range(120):
        after, moved, last, *_ = step(after, moved)
    assert float(last) < 0.1 * float(first)
    _, out = jax.jit(kn.functional(model))(after, moved, BATCH)
    assert float(out.metrics["label_error_rate"].value()) == 0
    labels = jax.jit(lambda p, s: kn.functional(model, "transcribe")(p, s, SAMPLES, LENGTHS, 4)[0].ids)(after, moved)
    np.testing.assert_array_equal(labels, [[1, 2, 3, -1], [4, 4, -1, -1], [2, -1, -1, -1], [-1] * 4])


@pytest.mark.parametrize("head", HEADS)
def test_samples_past_a_rows_end_are_not_heard(head):
    model, params, state = made(head)

    def loss(audio):
        return kn.functional(model)(params, state, BATCH._replace(audio=audio), key=jax.random.key(0), train=True)[1]

    run = jax.jit(lambda audio: loss(audio).total_loss())
    changed = SAMPLES.copy()
    changed[2, 4800:], changed[3] = 0.7, -0.5
    np.testing.assert_allclose(run(SAMPLES), run(changed), rtol=1e-6)


def test_the_transducer_equals_the_loss_of_all_its_logits():
    model, params, state = made("rnnt")
    x = jax.random.normal(jax.random.key(2), (2, 7, 32))
    frames, targets, counts = np.array([7, 5]), TARGETS[:2], np.array([3, 2])

    def whole(p):
        head = p["head"]
        embedded = head["embedding"]["weight"][np.pad(targets, ((0, 0), (1, 0)), constant_values=5)]
        predicted, _ = kn.functional(model.head.prediction)(head["prediction"], {}, embedded, Sequences())[0]
        read = x @ head["from_frame"]["weight"] + head["from_frame"]["bias"][None, None]
        joint = jnp.tanh(read[:, :, None] + (predicted @ head["from_prediction"]["weight"])[:, None])
        logs = jax.nn.log_softmax(joint @ head["output"]["weight"] + head["output"]["bias"][None, None, None])
        label = jnp.take_along_axis(logs[:, :, :-1], np.broadcast_to(targets[:, None, :, None], (2, 7, 3, 1)), -1)
        return transducer(logs[..., 5], label[..., 0], frames, counts)

    def ours(p):
        return kn.functional(model.head)(p["head"], {}, x, frames, targets, counts)[0]

    np.testing.assert_allclose(jax.jit(ours)(params), jax.jit(whole)(params), rtol=1e-5)
    grads = [jax.jit(jax.grad(lambda p, f=f: jnp.sum(f(p))))(params)["head"] for f in (ours, whole)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), *grads)


def test_relative_attention_is_its_formula():
    module = RelativeAttention.Config(input_dim=8, num_heads=2).build()
    params = jax.tree.map(lambda p: p + 0.3, kn.initialize(module, jax.random.key(0)))
    x = jax.random.normal(jax.random.key(1), (1, 5, 8))
    actual = kn.functional(module)(params, {}, x, Sequences())[0][0]
    weight = jax.tree.map(np.asarray, params)
    q, k, v = (
        np.einsum("te,ehd->thd", x[0], weight[n]["weight"]) + weight[n]["bias"] for n in ("query", "key", "value")
    )
    out = np.zeros((5, 2, 4))
    for i in range(5):
        scores = np.zeros((2, 5))
        for j in range(5):
            angles = (i - j) * 10_000.0 ** -(np.arange(0, 8, 2) / 8)
            wave = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(-1)
            r = np.einsum("e,ehd->hd", wave, weight["relative"]["weight"])
            scores[:, j] = ((q[i] + weight["content_bias"]) * k[j]).sum(-1) + (
                (q[i] + weight["position_bias"]) * r
            ).sum(-1)
        odds = np.exp(scores / 2 - (scores / 2).max(-1, keepdims=True))
        out[i] = np.einsum("hs,shd->hd", odds / odds.sum(-1, keepdims=True), v)
    wanted = np.einsum("thd,hde->te", out, weight["output"]["weight"]) + weight["output"]["bias"]
    np.testing.assert_allclose(actual[0], wanted, atol=1e-4)


def test_edit_distances_of_rows_equal_those_of_one_at_a_time():
    generator = np.random.default_rng(0)
    said, heard = generator.integers(0, 3, (20, 6)), generator.integers(0, 3, (20, 5))
    counts = generator.integers(0, 7, 20), generator.integers(0, 6, 20)
    actual = jax.jit(edit_distances)(said, counts[0], heard, counts[1])
    wanted = [
        edit_distance(list(a[:n]), list(b[:m])) for a, n, b, m in zip(said, counts[0], heard, counts[1], strict=True)
    ]
    np.testing.assert_array_equal(actual, wanted)


def test_a_transducer_has_no_logits_of_frames():
    model, params, state = made("rnnt")
    with pytest.raises(ModuleError, match="TransducerHead has no logits of frames alone; call transcribe"):
        kn.functional(model, "predict")(params, state, jnp.zeros((1, 20, 16)))
