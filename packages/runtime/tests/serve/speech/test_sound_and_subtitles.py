"""What goes into a model of speech and what comes out: sound at its rate, subtitles, letters."""

import io
import wave

import numpy as np
import pytest
from kanawa_runtime.data.speech.letters import Letters
from kanawa_runtime.data.speech.wave_files import SoundError, sound_samples
from kanawa_runtime.serve.speech.transcriber import Segment
from kanawa_runtime.serve.speech.written import as_srt, as_vtt, whole_text

SEGMENTS = [
    Segment(0.0, 1.5, " one -->", [1], 0.0, None),
    Segment(3599.9996, 3725.25, " two", [2], 0.0, None),
]


def test_subtitles():
    assert as_srt(SEGMENTS) == ("1\n00:00:00,000 --> 00:00:01,500\none -->\n\n2\n01:00:00,000 --> 01:02:05,250\ntwo\n")
    assert as_vtt(SEGMENTS) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\none ->\n\n01:00:00.000 --> 01:02:05.250\ntwo\n"
    )
    assert whole_text(SEGMENTS) == "one --> two"


@pytest.mark.parametrize("rate", [8_000, 22_050, 48_000])
def test_other_rates_and_channels_are_the_same_sound(rate):
    times = np.arange(rate) / rate
    tone = 0.5 * np.sin(2 * np.pi * 1000 * times)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(2)
        out.setsampwidth(2)
        out.setframerate(rate)
        # Noise that is opposite in the two channels is in neither's mean.
        noise = np.random.default_rng(0).uniform(-0.3, 0.3, rate)
        out.writeframes((np.stack([tone + noise, tone - noise], 1) * 32767 * 0.5).astype("<i2").tobytes())
    found = sound_samples(file.getvalue(), 16_000, 16_000, converts=True)
    assert found.shape == (16_000,) and found.dtype == np.float32
    expected = 0.25 * np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000)
    # The filter's ends apart.
    np.testing.assert_allclose(found[500:-500], expected[500:-500], atol=0.02)
    with pytest.raises(SoundError, match="2 channels at"):
        sound_samples(file.getvalue(), 16_000, 16_000)


def test_letters_there_and_back():
    made = Letters.Config(alphabet="ab é").build()
    assert made.encode("Ba éz").tolist() == [1, 0, 2, 3]
    assert made.decode([1, 0, 2, 3, 4]) == "ba é"
    assert made.vocab_size == 5
