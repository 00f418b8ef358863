"""What espeak-ng says becomes rows at the model's rate, and is learned (nightly)."""

import pathlib
import shutil

import numpy as np
import pytest
from kanawa_runtime.data.speech.source import SpeechSource

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng isn't installed")


@pytest.fixture
def spoken(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import speech_of_espeak

    return speech_of_espeak


def test_rows_hold_speech_at_the_models_rate_and_other_sentences_are_held_out(spoken, monkeypatch, tmp_path):
    monkeypatch.setattr(spoken, "HELD_OUT", 2)
    spoken.write_speech(tmp_path, 6)
    made = SpeechSource.Config(
        files=("speech.jsonl",), root=str(tmp_path), max_seconds=spoken.MOST_SECONDS, convert=True
    ).build()
    rows = [made.row(index) for index in range(6)]
    assert all(4_000 < row["audio_lengths"] <= 16_000 * spoken.MOST_SECONDS for row in rows)
    assert all(0.05 < np.abs(row["audio"]).max() <= 1 for row in rows)
    learned, held_out = ({one.record(i)["text"] for i in range(n)} for one, n in ((made, 6), (made.held_out(), 4)))
    assert len(held_out) == 2 and not learned & held_out


@pytest.mark.nightly
def test_new_sentences_are_understood_after_minutes(spoken, tmp_path):
    spoken.write_speech(tmp_path, 1200)
    rates = spoken.learn(tmp_path, 400)
    # 5.3 % and 15.0 % on 28 Nov 2026.
    assert rates["known"] < 0.15 and rates["new"] < 0.35
