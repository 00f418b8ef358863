"""`kanawa serve` of models of speech: OpenAI's client uploads sound and gets what is said in it."""

import contextlib
import io
import json
import shutil
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import numpy as np
import openai
import pytest
from kanawa.cli.main import main
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.http.from_run import transcribes, transcribing_model
from kanawa_runtime.serve.speech.windows import windows
from served_in_thread import serving

FIXTURES = Path(__file__).parents[2] / "packages" / "layers" / "tests" / "fixtures"
SPECIAL = {3: "<|startoftranscript|>", 33: "<|endoftext|>", 34: "<|en|>", 35: "<|de|>", 36: "<|translate|>"}
SPECIAL |= {37: "<|transcribe|>", 38: "<|startofprev|>", 39: "<|notimestamps|>"}
RULES = {"suppress_tokens": [5, 6, *range(34, 39)], "begin_suppress_tokens": [7, 33], "max_initial_timestamp_index": 5}


def tokenizer(size, special):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    names = {special.get(i, f"<|{(i - 40) * 0.02:.2f}|>" if special and i > 39 else f"Ġw{i}"): i for i in range(size)}
    made = Tokenizer(models.WordLevel(names, unk_token="Ġw0"))
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True) for name in special.values()])
    return made.to_str()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A Whisper of windows of 0.2 s, and a Parakeet, with tokenizers."""
    found = {}
    for name, special in (("whisper", SPECIAL), ("parakeet_ctc", {})):
        folder = tmp_path_factory.mktemp("speech") / name
        shutil.copytree(FIXTURES / name, folder)
        config = json.loads((folder / "config.json").read_text())
        if special:
            (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 33}))
            (folder / "generation_config.json").write_text(json.dumps(RULES | {"eos_token_id": 33}))
        (folder / "tokenizer.json").write_text(tokenizer(config["vocab_size"], special))
        found[name] = folder
    return found


@contextlib.contextmanager
def served(folder, rows=4, **limits):
    assert transcribes(folder)
    model = transcribing_model(folder, EngineConfig(max_queued=32, max_sequences=rows), name="it")
    with (
        serving(model, ("secret",), **limits) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as client,
        httpx2.Client(base_url=url, timeout=60) as http,
    ):
        yield client, http


def tone(seconds, rate=16_000, channels=1, width=2):
    """Returns a WAV file of a rising tone."""
    times = np.arange(int(seconds * rate)) / rate
    sound = 0.5 * np.sin(2 * np.pi * (300 + 2000 * times) * times)
    data = np.repeat((sound * (2 ** (8 * width - 1) - 1)).astype(f"<i{width}"), channels)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(width)
        out.setframerate(rate)
        out.writeframes(data.tobytes())
    return file.getvalue()


@pytest.fixture(scope="module")
def whisper(folders):
    with served(folders["whisper"], max_audio_seconds=2.0) as clients:
        yield clients


SOUND, KEY = tone(0.9), {"Authorization": "Bearer secret"}


def test_whisper_by_the_official_client(whisper):
    client, http = whisper

    def asked(content=SOUND, **options):
        return client.audio.transcriptions.create(model="it", file=("a.wav", content), **options)

    plain = asked()
    assert plain.text.startswith("w") and plain.usage.seconds == 1
    told = asked(response_format="verbose_json", timestamp_granularities=["segment"])
    assert told.language in ("en", "de") and told.duration == pytest.approx(0.9)
    ends = [(one.start, one.end) for one in told.segments]
    assert all(a <= b for a, b in ends) and ends == sorted(ends) and ends[-1][1] <= 0.9 and len(ends) > 4
    assert " ".join(one.text.strip() for one in told.segments) == told.text
    assert "-->" in asked(response_format="srt") and asked(response_format="vtt").startswith("WEBVTT\n")
    assert asked(response_format="text") == plain.text + "\n"
    stream = list(asked(stream=True))
    assert [event.type for event in stream][-1] == "transcript.text.done" and len(stream) > 3
    assert "".join(event.delta for event in stream[:-1]) == stream[-1].text == plain.text
    # Another rate, several channels and wider samples are the same sound.
    assert asked(tone(0.9, channels=2, width=4)).text == plain.text
    assert asked(tone(0.9, rate=48_000)).text.startswith("w")
    # Language, task, prompt and draws each have their say; many at once get what one gets.
    languages = {asked(language=name, response_format="verbose_json").language for name in ("en", "de")}
    assert languages == {"en", "de"}
    # The official client's own method is deprecated, which is an error here.
    translated = http.post("/v1/audio/translations", files={"file": ("a.wav", SOUND)}, headers=KEY)
    assert translated.json()["text"] not in ("", plain.text)
    assert asked(prompt="w11 w12 " * 20).text and asked(temperature=0.9).text == asked(temperature=0.9).text
    with ThreadPoolExecutor(8) as pool:
        lengths = [0.1 + 0.1 * (i % 4) for i in range(8)]
        together = list(pool.map(lambda seconds: asked(tone(seconds), temperature=0.01).text, lengths))
    assert together[:4] == together[4:]
    with pytest.raises(openai.BadRequestError, match="'fr' is no language of the model; expected one of de, en"):
        asked(language="fr")
    with pytest.raises(openai.NotFoundError, match="there is no '/v1/chat/completions' here"):
        client.chat.completions.create(model="it", messages=[])


def test_frames_with_labels_have_no_prompts(folders, monkeypatch):
    # Windows of half a minute take ten seconds to compile.
    monkeypatch.setattr("kanawa_runtime.serve.speech.engine._SECONDS", 1)
    with served(folders["parakeet_ctc"], rows=1) as (client, http):
        made = client.audio.transcriptions.create(
            model="it", file=("a.wav", tone(1.5)), response_format="verbose_json", prompt="ignored"
        )
        first, last = made.segments
        assert (first.start, last.end, made.language) == (0, 1.5, "") and 0.6 < first.end == last.start < 1
        with pytest.raises(openai.BadRequestError, match="this model names none"):
            client.audio.transcriptions.create(model="it", file=("a.wav", tone(0.5)), language="en")
        translated = http.post("/v1/audio/translations", files={"file": ("a.wav", tone(0.5))}, headers=KEY)
        assert (translated.status_code, translated.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the file is empty"),
        (b"not sound at all", "no WAV file"),
        (tone(0.5)[:3000], "ends after"),
        (tone(0), "no samples"),
        (tone(3), "lasts 3.00 s, more than the limit of 2.00 s (server.max_audio_seconds)"),
    ],
)
def test_sound_that_cannot_be_used(whisper, content, why):
    answer = whisper[1].post("/v1/audio/transcriptions", files={"file": ("a.wav", content)}, headers=KEY)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "file"
    assert why in answer.json()["error"]["message"].replace("soundfile reads", "no WAV file")


def test_forms_that_are_refused(whisper):
    file, path = {"file": ("a.wav", tone(0.1))}, "/v1/audio/transcriptions"

    def refused(**options):
        answer = whisper[1].post(path, **{"headers": KEY, **options})
        return answer.status_code, answer.json()["error"]["param"] or answer.json()["error"]["code"]

    assert refused(files=file, headers={})[0] == 401
    assert refused(json={"file": "a"}) == (415, "Content-Type")
    assert refused(files={"flie": ("a.wav", b"")}) == (400, "file")
    assert refused(files=file, data={"langauge": "en"}) == (400, "langauge")
    assert refused(files=file, data={"temperature": "hot"}) == (400, "temperature")
    assert refused(files=file, data={"timestamp_granularities[]": "word"})[0] == 400
    broken = KEY | {"Content-Type": "multipart/form-data; boundary=x"}
    assert refused(content=b"--y\r\n", headers=broken)[0] == 400
    assert refused(content=b"", headers=KEY | {"Content-Type": "multipart/form-data"}) == (400, "invalid_form")
    assert "file" not in whisper[1].get("/openapi.json").json()["paths"][path]["post"]["requestBody"]["content"]


def test_the_command_writes_what_is_said(folders, whisper, tmp_path, capsys):
    (tmp_path / "a.wav").write_bytes(SOUND)
    (tmp_path / "b.wav").write_bytes(b"RIFF")
    run, sound = str(folders["whisper"]), str(tmp_path / "a.wav")
    assert main(["transcribe", run, sound, "--json", "--language", "de"]) == 0
    told, form = json.loads(capsys.readouterr().out), {"language": "de", "response_format": "verbose_json"}
    served_by = whisper[1].post("/v1/audio/transcriptions", files={"file": ("a.wav", SOUND)}, data=form, headers=KEY)
    assert (told["text"], told["language"]) == (served_by.json()["text"], "de")
    assert [one["end"] for one in told["segments"]] == [one["end"] for one in served_by.json()["segments"]]
    for words, why in (
        ([run, sound, str(tmp_path / "b.wav")], "b.wav: it is no WAV file"),
        ([run, sound, "--language", "fr"], "--language: 'fr' is no language of the model"),
        ([str(tmp_path), sound], "has no model that transcribes speech"),
    ):
        assert main(["transcribe", *words]) == 2
        said = capsys.readouterr().err
        assert why in said.replace("it is no sound file that soundfile reads", "it is no WAV file"), said


def test_long_sound_is_cut_where_it_is_quiet():
    rate, sound = 1000, np.ones(10_000, np.float32)
    sound[2500:2700] = sound[5000:5200] = 0.0
    places = windows(sound, 3000, rate)
    assert [start for start, _ in places][1:] == [end for _, end in places][:-1]
    assert (places[0][0], places[-1][1]) == (0, len(sound)) and all(b - a <= 3000 for a, b in places)
    assert 2500 <= places[0][1] <= 2700 and 5000 <= places[1][1] <= 5200
