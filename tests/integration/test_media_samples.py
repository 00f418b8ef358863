"""What reports show of models in training: pictures with labels, pairs, recordings to play, answers about pictures."""

import io
import json
import wave

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Environment
from kanawa_layers.models.vision_language import VisionLanguageModel
from kanawa_layers.recipes.clip import two_towers
from kanawa_layers.recipes.conformer import conformer
from kanawa_layers.recipes.vit import vit
from kanawa_runtime.data.images.decode import decoded
from kanawa_runtime.data.images.drawn import SHAPES, DrawnShapes
from kanawa_runtime.data.images.drawn_captions import DrawnCaptions
from kanawa_runtime.data.images.drawn_questions import DrawnQuestions
from kanawa_runtime.data.speech.source import SpeechSource
from kanawa_runtime.report.media import gallery
from kanawa_runtime.runs.media import MOST_BYTES, media_of
from kanawa_runtime.serve.examples.transcribed import lowered
from kanawa_runtime.train.evaluate import sampler_of


def sampled(cfg, data, change=lambda model, params: params):
    """Returns the event of a model's first sample; what begins as zeros is drawn."""
    model = cfg.build()
    generator = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: x if np.any(x) else 0.3 * generator.standard_normal(x.shape, np.float32),
        kn.initialize(model, jax.random.key(1)),
    )
    state = kn.initial_state(model, jax.random.key(0))
    source = data.freeze().build()
    sampler = sampler_of("", model, source, Environment())
    params = change(model, params)
    event = sampler.sample(params, state)
    assert "error" not in event and event["about"], event
    json.dumps(event)
    # The second sample has no programs to compile, and the same rows.
    assert sampler.sample(params, state) == event
    return model, params, source, event


def test_pictures_of_a_classifier_say_what_they_are_and_what_they_are_taken_for():
    sizes = {"num_layers": 1, "input_dim": 16, "num_heads": 2, "patch_size": 4, "image_size": 8}
    cfg = vit(**sizes, num_classes=len(SHAPES)).set(class_names=tuple(SHAPES))
    model, params, source, event = sampled(cfg, DrawnShapes.Config(height=8, width=8, held_out_pictures=20))
    rows = [source.held_out().row(i) for i in range(12)]
    logits, _ = kn.functional(model, "predict")(params, {}, np.stack([row["images"] for row in rows]))
    names = tuple(SHAPES)
    expected = [
        names[truth] if truth == said else f"{names[truth]} → {names[said]}"
        for truth, said in zip((int(row["target_ids"]) for row in rows), np.argmax(logits, 1).tolist(), strict=True)
    ]
    shown = media_of(event)
    assert [medium.text for medium in shown] == expected and any("→" in text for text in expected)
    np.testing.assert_array_equal(np.array(decoded(shown[3].data, 3, 100)), rows[3]["images"])


def test_pairs_say_which_label_is_picked():
    cfg = two_towers(
        output_dim=12, num_layers=1, input_dim=16, num_heads=2, patch_size=4, image_size=8, text_layers=1, text_dim=16,
        text_heads=2, vocab_size=259, max_length=48, end_id=258,
    )  # fmt: skip
    data = DrawnCaptions.Config(height=8, width=8, held_out_pictures=20)
    *_, source, event = sampled(cfg, data)
    shown, names = media_of(event), source.class_names
    captions = [source.shown(source.held_out().row(i)).text for i in range(12)]
    for medium, caption in zip(shown, captions, strict=True):
        own, _, picked = medium.text.partition(" → ")
        assert own == caption and (not picked or picked in names)
    assert any("→" in medium.text for medium in shown)


@pytest.fixture
def recordings(tmp_path):
    rate = 8_000
    for number in range(10):
        sound = 0.4 * np.sin(2 * np.pi * (300 + 40 * number) * np.arange(rate // 4) / rate)
        with wave.open(str(tmp_path / f"{number}.wav"), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(rate)
            out.writeframes((sound * 32767).astype("<i2").tobytes())
        (tmp_path / f"{number}.txt").write_text(f"{'abcdefghij'[number]} tone")
    return tmp_path


def test_recordings_are_played_with_what_is_said_and_heard(recordings):
    cfg = conformer(
        num_layers=1, input_dim=16, num_heads=2, vocab_size=29, halved=2, channels=8, num_mels=20
    )  # fmt: skip
    data = SpeechSource.Config(
        root=str(recordings), files=("**/*",), sample_rate=8_000, max_seconds=0.5, sequence_length=16,
        validation_one_in=2,
    )  # fmt: skip
    *_, source, event = sampled(cfg, data)
    shown = media_of(event)
    assert shown
    rows = [source.held_out().row(i) for i in range(len(shown))]
    for medium, row in zip(shown, rows, strict=True):
        said, arrow, _ = medium.text.partition(" → ")
        assert said == source.shown(row).text and arrow
        with wave.open(io.BytesIO(medium.data)) as sound:
            assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (8_000, 1, 2)
            samples = np.frombuffer(sound.readframes(10_000), "<i2") / 32767
        np.testing.assert_allclose(samples, row["audio"][: int(row["audio_lengths"])], atol=1e-4)
    assert gallery(shown).count('<audio controls preload="none" src="data:audio/wav;base64,') == len(shown)


def test_long_recordings_have_fewer_samples_so_that_four_fit():
    samples, rate = lowered(np.ones(16_000 * 30, np.float32), 16_000)
    assert 4 * (2 * len(samples) + 44) <= MOST_BYTES and len(samples) / rate == pytest.approx(30, rel=0.05)


def test_answers_about_pictures_are_shown_beside_the_right_ones():
    cfg = kn.component("models", "vlm-tiny", asker="tests")()
    for _, node in cfg.walk():
        if "scan" in node.fields():
            node.set(scan=False)
        if "num_layers" in node.fields():
            node.set(num_layers=2)
    data = DrawnQuestions.Config(held_out_pictures=10)
    data.fit(cfg)
    model, _, source, event = sampled(cfg, data)
    assert isinstance(model, VisionLanguageModel)
    held_out = source.held_out()
    for number, medium in enumerate(media_of(event)):
        known, _, written = medium.text.partition(" → ")
        row = held_out.row(number)
        _, question, answer = held_out.asked(number)
        assert known == f"{question} {answer}" and written is not None
        np.testing.assert_array_equal(np.array(decoded(medium.data, 3, 10_000)), row["images"][0])
    assert len(media_of(event)) == 8
