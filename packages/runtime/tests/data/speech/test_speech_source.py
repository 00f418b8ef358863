"""Rows of speech are what files and transcripts say, and what can't be used is named."""

import json
import wave

import numpy as np
import pytest
from kanawa.testing.data_source import DataSourceConformance
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.files import RecordFiles
from kanawa_runtime.data.speech.source import SpeechSource
from kanawa_runtime.data.speech.wave_files import SoundError, sound_samples

RATE = 8000


def write_wave(path, samples, width=2, rate=RATE, channels=1):
    scaled = np.round(np.asarray(samples) * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(
            b"".join(int(s + 128 * (width == 1)).to_bytes(width, "little", signed=width > 1) for s in scaled)
        )


def folder_of(folder, count=12):
    folder.mkdir(exist_ok=True)
    lines = []
    for number in range(count):
        write_wave(folder / f"{number}.wav", 0.5 * np.sin(np.arange(100 + number) * 0.1 * (number + 1)))
        lines.append(json.dumps({"audio": f"{number}.wav", "text": f"Word {'ab'[number % 2]}"}))
    (folder / "speech.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def source(folder, **fields):
    records = RecordFiles.Config(files=("speech.jsonl",), root=str(folder))
    sizes = {"sequence_length": 8, "sample_rate": RATE, "max_seconds": 0.05, "validation_one_in": 4}
    return SpeechSource.Config(records=records, **{**sizes, **fields}).build()


def test_a_row_is_its_file_and_its_transcript(tmp_path):
    made = source(folder_of(tmp_path))
    rows = [made.row(i) for i in range(2 * made.once().num_rows)]
    assert {made.text_of(row["target_ids"][row["loss_weights"] > 0]) for row in rows} == {"word a", "word b"}
    for index, row in enumerate(rows):
        number = int(row["audio_lengths"]) - 100
        wanted = 0.5 * np.sin(np.arange(100 + number) * 0.1 * (number + 1))
        np.testing.assert_allclose(row["audio"][: 100 + number], wanted, atol=1e-4)
        assert not row["audio"][100 + number :].any()
        assert made.record(index)["text"] == f"word {'ab'[number % 2]}"
    lengths = [int(row["audio_lengths"]) for row in rows]
    half = len(lengths) // 2
    assert sorted(lengths[:half]) == sorted(lengths[half:]) and lengths[:half] != lengths[half:]
    held = made.held_out()
    assert held.num_rows + made.once().num_rows == 12
    assert not {int(held.row(i)["audio_lengths"]) for i in range(held.num_rows)} & set(lengths)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_every_width(tmp_path, width):
    samples = np.linspace(-0.9, 0.9, 50)
    write_wave(tmp_path / "x.wav", samples, width)
    found = sound_samples((tmp_path / "x.wav").read_bytes(), RATE, 100)
    np.testing.assert_allclose(found, samples, atol=2e-2 if width == 1 else 1e-4)


def test_sound_that_cannot_be_used(tmp_path):
    write_wave(tmp_path / "x.wav", np.zeros(50), rate=16_000)
    content = (tmp_path / "x.wav").read_bytes()
    with pytest.raises(SoundError, match=r"1 channels at 16000 Hz, expected one at 8000 Hz; convert it: ffmpeg"):
        sound_samples(content, RATE, 100)
    with pytest.raises(SoundError, match="more than max_seconds allows"):
        sound_samples(content, 16_000, 40)
    with pytest.raises(SoundError, match="ends after 40 of the 50 samples"):
        sound_samples(content[:-20], 16_000, 100)
    with pytest.raises(SoundError, match="isn't a WAV file that can be read"):
        sound_samples(content[:20], 16_000, 100)
    with pytest.raises(
        SoundError, match="no WAV file; other formats need soundfile|no sound file that soundfile reads"
    ):
        sound_samples(b"not sound", 16_000, 100)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"audio": "0.wav"}, "speech.jsonl:13: there is no 'text'; its columns are audio"),
        ({"audio": "gone.wav", "text": "a"}, "there is no file .*gone.wav"),
        ({"audio": "0.wav", "text": "a1"}, "its text has '1', which data.alphabet lacks"),
        ({"audio": "0.wav", "text": "a" * 9}, r"9 letters, more than data.sequence_length \(8\)"),
        ({"audio": 3, "text": "a"}, "'audio' is a int, expected a path or the bytes"),
    ],
)
def test_a_bad_record_stops_or_is_left_out(tmp_path, line, problem):
    folder_of(tmp_path)
    with (tmp_path / "speech.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(CorpusError, match=problem):
        source(tmp_path).row(0)
    skipping = source(tmp_path, on_bad="skip")
    assert skipping.once().num_rows + skipping.held_out().num_rows == 12


def test_a_broken_file_stops_or_is_a_row_without_weight(tmp_path):
    folder_of(tmp_path, 1)
    (tmp_path / "0.wav").write_bytes(b"RIFF....WAVEbroken")
    with pytest.raises(CorpusError, match=r"speech.jsonl:1: it isn't a WAV file"):
        source(tmp_path, validation_one_in=0).row(0)
    row = source(tmp_path, validation_one_in=0, on_bad="skip").row(0)
    assert row["audio_lengths"] == 0 and not row["loss_weights"].any()


class TestSpeechSource(DataSourceConformance):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.root = folder_of(tmp_path)

    def source(self):
        return source(self.root)
