"""`tokenizer.model`: the ids of SentencePiece itself, for BPE with bytes, with symbols, and for unigram models."""

import gzip
import json
from pathlib import Path

import pytest
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from kanawa_runtime.data.tokenizers.sentencepiece import read_model
from kanawa_runtime.runs.tokenizer_file import TokenizerError, tokenizer_file, tokenizer_from_bytes

FIXTURES = Path(__file__).parent / "fixtures"
#: See fixtures/make_sentencepiece.py.
IDS = json.loads((FIXTURES / "sentencepiece.json").read_text())["ids"]


@pytest.fixture
def folder(tmp_path: Path):
    """Returns what writes a folder with one of the models."""

    def write(name: str, file: str = "tokenizer.model", **settings: object) -> Path:
        (tmp_path / file).write_bytes(gzip.decompress((FIXTURES / f"{name}.model.gz").read_bytes()))
        if settings:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        return tmp_path

    return write


@pytest.mark.parametrize("name", IDS)
def test_ids_are_those_of_sentencepiece(folder, name):
    tokenizer = load_tokenizer(folder(name))
    for text, ids in IDS[name]:
        assert tokenizer.encode(text).tolist() == ids, text
        if name != "t5" and "▁" not in text:
            assert tokenizer.decode(ids) == text


def test_special_ids_are_the_models(folder):
    tokenizer = load_tokenizer(folder("llama"))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.prefix_ids, tokenizer.stop_ids) == (1, 2, (1,), (2,))
    gemma = load_tokenizer(folder("gemma"))
    assert (gemma.pad_id, gemma.eos_id, gemma.bos_id, gemma.prefix_ids) == (0, 1, 2, (2,))
    t5 = load_tokenizer(folder("t5", "spiece.model"))
    assert t5.eos_id == 1


def test_settings_of_the_folder_come_first(folder):
    place = folder("llama", add_bos_token=False, eos_token="</s>", chat_template="x")
    tokenizer = load_tokenizer(place / "tokenizer.model")
    assert tokenizer.prefix_ids == ()
    assert json.loads(tokenizer.folder_files()["tokenizer_config.json"])["chat_template"] == "x"


def test_a_run_keeps_and_exports_it_as_tokenizer_json(folder):
    place = folder("llama")
    assert tokenizer_file(place) == place / "tokenizer.model"
    tokenizer = tokenizer_from_bytes(load_tokenizer(place).to_bytes())
    exported = place / "exported"
    exported.mkdir()
    for name, content in tokenizer.folder_files().items():
        (exported / name).write_bytes(content)
    assert not (exported / "tokenizer.model").exists()
    again = load_tokenizer(exported)
    for text, ids in IDS["llama"]:
        assert again.encode(text).tolist() == ids


def test_tokens_know_their_characters(folder):
    for name in ("llama", "gemma"):
        tokenizer = load_tokenizer(folder(name))
        ids, ranges = tokenizer.encode_ranges("The quick 🎉")
        assert ids.tolist() == tokenizer.encode("The quick 🎉").tolist()
        covered = {place for begin, end in ranges.tolist() for place in range(begin, end)}
        assert covered == set(range(len("The quick 🎉")))


def test_what_is_no_model_is_said(folder, tmp_path):
    content = gzip.decompress((FIXTURES / "llama.model.gz").read_bytes())
    for damaged, says in (
        (content[:-7], "cut off|isn't a SentencePiece model"),
        (b"{}", "isn't a SentencePiece model"),
        (b"", "it has no pieces"),
    ):
        (tmp_path / "tokenizer.model").write_bytes(damaged)
        with pytest.raises(TokenizerError, match=says):
            load_tokenizer(tmp_path)
    # A model of words: trainer_spec (field 2) with model_type (field 3) 3.
    with pytest.raises(ValueError, match="of a kind that isn't read .*transformers"):
        read_model(content + b"\x12\x02\x18\x03")
