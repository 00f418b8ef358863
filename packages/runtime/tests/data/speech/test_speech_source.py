"""Rows of speech are what files and transcripts say, and what can't be used is named."""

import json
import re
import struct
import wave

import numpy as np
import pytest
from kanawa.testing.data_source import DataSourceConformance
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.speech.source import SpeechSource
from kanawa_runtime.data.speech.wave_files import SoundError, sound_samples
from kanawa_runtime.train.trainer import Trainer

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
    sizes = {"sequence_length": 8, "sample_rate": RATE, "max_seconds": 0.05, "validation_one_in": 4}
    return SpeechSource.Config(files=("speech.jsonl",), root=str(folder), **{**sizes, **fields}).build()


def test_a_row_is_its_file_and_its_transcript(tmp_path):
    made = source(folder_of(tmp_path))
    rows = [made.row(i) for i in range(2 * made.once("train").num_rows)]
    assert {made.text_of(row["target_ids"][row["loss_weights"] > 0]) for row in rows} == {"word a", "word b"}
    for index, row in enumerate(rows):
        number = int(row["audio_lengths"]) - 100
        wanted = 0.5 * np.sin(np.arange(100 + number) * 0.1 * (number + 1))
        np.testing.assert_allclose(row["audio"][: 100 + number], wanted, atol=1e-4)
        assert not row["audio"][100 + number :].any()
        assert made.record(index)["text"] == f"Word {'ab'[number % 2]}"
    lengths = [int(row["audio_lengths"]) for row in rows]
    half = len(lengths) // 2
    assert sorted(lengths[:half]) == sorted(lengths[half:]) and lengths[:half] != lengths[half:]
    held = made.held_out()
    assert held.num_rows + made.once("train").num_rows == 12
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
    with pytest.raises(SoundError, match=r"1 channel at 16000 Hz, expected one at 8000 Hz; convert it: ffmpeg"):
        sound_samples(content, RATE, 100)
    with pytest.raises(SoundError, match="more than the limit of 0.00 s"):
        sound_samples(content, 16_000, 40)
    with pytest.raises(SoundError, match="ends after 40 of the 50 samples"):
        sound_samples(content[:-20], 16_000, 100)
    with pytest.raises(SoundError, match="isn't a WAV file that can be read"):
        sound_samples(content[:20], 16_000, 100)
    with pytest.raises(SoundError, match=r"it is no (WAV|sound) file.*: it begins with b'not soun'"):
        sound_samples(b"not sound", 16_000, 100)
    with pytest.raises(SoundError, match="the file is empty"):
        sound_samples(b"", 16_000, 100)


def wave_bytes(samples, dtype, encoding, channels=1, rate=RATE, extensible=False):
    """Returns a WAV file of any header, as programs that measure write it."""
    data = np.asarray(samples, dtype).tobytes()
    bits = 8 * np.dtype(dtype).itemsize
    fields = struct.pack("<HHIIHH", 0xFFFE if extensible else encoding, channels, rate, 0, bits // 8, bits)
    if extensible:
        fields += struct.pack("<HHIH14s", 22, bits, 0, encoding, b"rest of the GUID")
    extra = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    body = b"fmt " + struct.pack("<I", len(fields)) + fields + extra + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_samples_that_are_floats(dtype, extensible):
    samples = np.linspace(-0.9, 0.9, 50)
    found = sound_samples(wave_bytes(samples, dtype, 3, extensible=extensible), RATE, 100)
    np.testing.assert_allclose(found, samples, atol=1e-7)
    with pytest.raises(SoundError, match="no finite numbers"):
        sound_samples(wave_bytes([0.1, np.nan], dtype, 3), RATE, 100)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (wave_bytes([1, 2], "<i8", 1), "whole numbers of 64 bits; whole numbers of 8, 16, 24 and 32 bits and floats"),
        (wave_bytes([1, 2], "u1", 7), "encoding 7 of 8 bits"),
        (wave_bytes([1, 2], "<i2", 1, rate=0), "its header names 1 channels at 0 Hz: it is damaged"),
        (wave_bytes([1, 2], "<i2", 1, channels=0), "its header names 0 channels at 8000 Hz"),
        (wave_bytes([1, 2], "<i2", 1, channels=2), "it has 2 channels at 8000 Hz, expected one at 8000 Hz"),
        (wave_bytes([], "<i2", 1), "it has no samples"),
        (wave_bytes([0] * 900, "<i2", 1), "it lasts 0.11 s, more than the limit of 0.01 s"),
        (wave_bytes([0] * 90, "<i2", 1)[:-21], "it ends after 79 of the 90 samples"),
        (b"RIFF\x04\0\0\0WAVE", "it ends before its format"),
        (wave_bytes([0], "<i2", 1)[:40], "it ends before its samples"),
    ],
)
def test_what_a_header_says_is_checked_before_samples_are_read(content, problem):
    with pytest.raises(SoundError, match=problem):
        sound_samples(content, RATE, 100)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"audio": "0.wav"}, "speech.jsonl:13: no text; .*the row has audio"),
        ({"audio": "0.wav", "text": ""}, "text is empty; the row has audio, text"),
        ({"audio": "gone.wav", "text": "a"}, "audio: .*gone.wav isn't there; paths are relative to the table"),
        ({"audio": "0.wav", "text": "a1"}, "text: it has '1', which data.alphabet lacks"),
        ({"audio": "0.wav", "text": "a" * 9}, r"text: it has 9 letters, more than data.sequence_length \(8\)"),
        ({"audio": "0.wav", "text": " "}, "text: the text is empty"),
        ({"audio": "0.wav", "text": 7}, "text: found int, expected text"),
        ({"audio": 3, "text": "a"}, "audio is int, expected the path of a recording or its bytes"),
    ],
)
def test_a_bad_record_stops_or_is_left_out_and_counted(tmp_path, line, problem):
    folder_of(tmp_path)
    with (tmp_path / "speech.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(CorpusError, match=problem):
        source(tmp_path).row(0)
    skipping = source(tmp_path, on_bad="skip")
    assert skipping.once("train").num_rows + skipping.held_out().num_rows == skipping.once().num_rows == 12
    account = skipping.account()
    assert (account["recordings"], account["skipped"]) == (12, 1)
    assert re.search(problem.removeprefix("speech.jsonl:13: "), account["reasons"][0])


def test_a_broken_file_stops_or_is_a_row_without_weight(tmp_path, caplog):
    folder_of(tmp_path, 1)
    (tmp_path / "0.wav").write_bytes(b"RIFF....WAVEbroken")
    with pytest.raises(CorpusError, match=r"0.wav: it isn't a WAV file.* data.on_bad=skip leaves"):
        source(tmp_path, validation_one_in=0).row(0)
    skipping = source(tmp_path, validation_one_in=0, on_bad="skip")
    rows = [skipping.row(index) for index in range(100)]
    assert rows[0]["audio_lengths"] == 0 and not any(row["loss_weights"].any() for row in rows)
    assert skipping.num_left_out == 100 and len(caplog.records) < 10


def test_other_rates_and_channels_are_converted_where_asked(tmp_path):
    folder_of(tmp_path, 1)
    # 0.04 s of a tone of 200 Hz in the left channel alone, at three times the rate.
    tone = np.sin(2 * np.pi * 200 * np.arange(960) / (3 * RATE))
    write_wave(tmp_path / "0.wav", np.stack([0.8 * tone, 0 * tone], axis=1).ravel(), rate=3 * RATE, channels=2)
    with pytest.raises(CorpusError, match=r"0.wav: it has 2 channels at 24000 Hz.* data.convert=true takes other"):
        source(tmp_path, validation_one_in=0).row(0)
    row = source(tmp_path, validation_one_in=0, convert=True).row(0)
    assert row["audio_lengths"] == 320
    wanted = 0.4 * np.sin(2 * np.pi * 200 * np.arange(320) / RATE)
    # The filter's ends see silence.
    np.testing.assert_allclose(row["audio"][20:300], wanted[20:300], atol=0.01)


def test_few_recordings_train_where_none_is_held_out(tmp_path):
    made = source(folder_of(tmp_path, 2), validation_one_in=1000)
    assert made.held_out() is None and made.row(0)["loss_weights"].any() and made.once().num_rows == 2


def test_data_names_files_with_options_and_folders_of_wav_beside_txt(tmp_path):
    folder_of(tmp_path)
    own = SpeechSource.Config(files=(), max_seconds=0.05)
    experiment = Trainer.Config(data=own)
    cfg = SpeechSource.Config.of_files(f"{tmp_path}/*.jsonl:on_bad=skip,sample_rate={RATE}", experiment)
    assert (cfg.on_bad, cfg.sample_rate, cfg.max_seconds, cfg.root) == ("skip", RATE, 0.05, str(tmp_path))
    tables = [cfg.build().once().record(row)["text"] for row in range(12)]
    (tmp_path / "speech.jsonl").unlink()
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text(f"Word {'ab'[number % 2]}\n")
    beside = SpeechSource.Config.of_files(f"{tmp_path}:sample_rate={RATE},sequence_length=8", experiment).build()
    assert sorted(beside.once().record(row)["text"] for row in range(12)) == sorted(tables)
    (tmp_path / "3.txt").unlink()
    (tmp_path / "x.txt").write_text("a")
    with pytest.raises(CorpusError, match=r"3.wav: there is no .txt of its name beside it; leave such rows out"):
        beside.config.build().row(0)
    assert beside.config.clone().set(on_bad="skip").build().account()["skipped"] == 2


def test_a_row_is_shown_as_its_words_and_its_spectrogram(tmp_path):
    for number, hertz in enumerate((1000, 3000)):
        write_wave(tmp_path / f"{number}.wav", 0.5 * np.sin(2 * np.pi * hertz * np.arange(2000) / RATE))
    lines = [json.dumps({"audio": f"{n}.wav", "text": f"tone {'ab'[n]}"}) for n in range(2)]
    (tmp_path / "speech.jsonl").write_text("\n".join(lines))
    made = source(tmp_path, validation_one_in=0, shuffle=False, max_seconds=1.0)
    for number, hertz in enumerate((1000, 3000)):
        text, image = made.shown(made.row(number))
        assert text == f"tone {'ab'[number]}" and image.shape == (64, 23, 1) and image.dtype == np.uint8
        # Half the rate is at the top.
        assert set(np.argmax(image[::-1, :, 0], axis=0) // 2) <= {hertz // 125 - 1, hertz // 125}
    silent = {name: np.zeros(f.shape, f.dtype) for name, f in made.fields.items()}
    assert made.shown(silent).text == "left out"


class TestSpeechSource(DataSourceConformance):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.root = folder_of(tmp_path)

    def source(self):
        return source(self.root)
