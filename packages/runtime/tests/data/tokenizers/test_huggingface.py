"""Tokenizers of other models against the library that made them; ours against themselves in that library."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kanawa_runtime.data.own_files import own_corpus
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.tokenizers.bpe import BytePairTokenizer
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.data.tokenizers.export import SPECIAL
from kanawa_runtime.data.tokenizers.huggingface import HuggingFaceTokenizer
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.tokenizer_file import TokenizerError
from kanawa_runtime.serve.growing_text import GrowingText
from tokenizers import Tokenizer as LibraryTokenizer

from .library_tokenizers import TEXT, added, byte_level, end_of, sentence_pieces, unigram, write_folder

HARD = ["", " ", "a", "  two  spaces ", "日本語 🎉 café\n\ttab", "<|turn|>user", "x" * 300, "\u2028\ufffd", "Ⅷ ﬁ ÀÉ"]
MAKERS = (byte_level, sentence_pieces, unigram)


def ours() -> Tokenizer:
    return BytePairTokenizer.Config(vocab_size=500, min_piece_count=1).build().fit([t.encode() for t in TEXT])


@pytest.mark.parametrize("make", MAKERS)
def test_it_encodes_and_decodes_as_the_library_does(make: Callable[[], LibraryTokenizer], tmp_path: Path) -> None:
    library = make()
    # What a saved tokenizer cuts and pads to, a text of any length is not.
    library.enable_truncation(4)
    library.enable_padding(length=4)
    read = load_tokenizer(write_folder(tmp_path, library, {"eos_token": "</s>"}))
    library.no_truncation()
    library.no_padding()
    assert read.vocab_size == library.get_vocab_size()
    for text in [*HARD, *TEXT[:3]]:
        ids = library.encode(text, add_special_tokens=False).ids
        assert read.encode(text).tolist() == read.encode(text.encode()).tolist() == ids
        assert read.decode(ids) == library.decode(ids)
    each = [*HARD, *TEXT] * 10
    found = [ids.tolist() for ids in read.encode_each(text.encode() for text in each)]
    assert found == [read.encode(text).tolist() for text in each]


@pytest.mark.parametrize("make", MAKERS)
def test_a_stream_adds_up_to_the_whole(make: Callable[[], LibraryTokenizer], tmp_path: Path) -> None:
    read = load_tokenizer(write_folder(tmp_path, make()))
    for text in [*HARD, *TEXT[:3]]:
        ids = read.encode(text).tolist()
        for start in (0, len(ids) // 2):
            stream = GrowingText(read, ids[:start])
            pieces = [stream.push(index) for index in ids[start:]]
            before, whole = read.decode(ids[:start]), read.decode(ids)
            if before.endswith("\ufffd"):
                continue  # Cut within a character, which then belongs to neither side.
            assert before + "".join(pieces) + stream.finish() == whole
            assert not any("\ufffd" in piece for piece in pieces) or "\ufffd" in text


def test_a_run_keeps_it_whole(tmp_path: Path) -> None:
    settings_ = {"eos_token": end_of("<|end|>"), "bos_token": "<|begin|>"}
    folder = write_folder(tmp_path / "model", byte_level(), settings_)
    read = load_tokenizer(folder)
    read.save(tmp_path / "kept.json")
    kept = load_tokenizer(tmp_path / "kept.json")
    assert isinstance(kept, HuggingFaceTokenizer)
    assert kept.digest == read.digest
    assert kept.encode(TEXT[2]).tolist() == read.encode(TEXT[2]).tolist()
    assert {n: (folder / n).read_bytes() for n in ("tokenizer.json", "tokenizer_config.json")} == kept.folder_files()


def test_special_tokens_come_from_where_the_folder_says(tmp_path: Path) -> None:
    library = byte_level()
    begin, end, turn = (library.token_to_id(f"<|{name}|>") for name in ("begin", "end", "turn"))
    folder = write_folder(tmp_path, library)
    with pytest.raises(TokenizerError, match="names no end token"):
        _ = load_tokenizer(folder).eos_id
    (folder / "config.json").write_text(json.dumps({"eos_token_id": turn, "vocab_size": 512}))
    assert load_tokenizer(folder).eos_id == turn
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, turn]}))
    assert load_tokenizer(folder).stop_ids == (end, turn)
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": None, "bos_token": end_of("<|begin|>")}))
    read = load_tokenizer(folder)
    assert (read.bos_id, read.eos_id, read.prefix_ids) == (begin, end, (begin,))
    (folder / "tokenizer_config.json").write_text("{}")
    assert load_tokenizer(folder).bos_id == end


def test_special_tokens_are_read_in_a_text_and_stand_for_none(tmp_path: Path) -> None:
    library = byte_level()
    read = load_tokenizer(write_folder(tmp_path, library, {"eos_token": "<|end|>"}))
    ids = read.encode("<|turn|>user").tolist()
    assert ids[0] == library.token_to_id("<|turn|>")
    assert read.decode(ids) == "user"
    assert read.byte_lengths[ids].sum() == len("user")


def test_a_token_the_model_has_no_row_for_is_text(tmp_path: Path) -> None:
    library = added(byte_level(), "<|image|>")
    size = library.get_vocab_size()
    folder = write_folder(tmp_path, library, {"eos_token": "<|end|>"})
    assert load_tokenizer(folder).vocab_size == size
    (folder / "config.json").write_text(json.dumps({"vocab_size": size - 1}))
    read = load_tokenizer(folder)
    assert read.vocab_size == size - 1
    assert read.encode("<|image|>").max() < size - 1


@pytest.mark.parametrize("make", MAKERS)
def test_the_bytes_of_a_split_are_counted_exactly(
    make: Callable[[], LibraryTokenizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = tmp_path / "texts"
    texts.mkdir()
    for number, text in enumerate([*TEXT[:3], "DOUBLE  Ⅷ"]):
        (texts / f"{number}.txt").write_text(text)
    folder = write_folder(tmp_path / "model", make(), {"eos_token": "</s>" if make is not byte_level else "<|end|>"})
    corpus = own_corpus("texts/*.txt").set(validation_one_in=0)
    cfg = TextSource.Config(corpus=corpus, tokenizer_file=str(folder), sequence_length=32, epochs=1)
    source = cfg.build()
    rows = [source.row(index) for index in range(source.num_rows)]
    counted = sum(source.target_bytes(row["target_ids"], row["loss_weights"]) for row in rows)
    assert counted == pytest.approx(sum(path.stat().st_size for path in texts.iterdir()))


@pytest.mark.parametrize("make", [ours, ByteTokenizer.Config().build])
def test_ours_is_the_same_in_the_library(make: Callable[[], Tokenizer], tmp_path: Path) -> None:
    tokenizer = make()
    for name, content in tokenizer.folder_files().items():
        (tmp_path / name).write_bytes(content)
    library = LibraryTokenizer.from_file(str(tmp_path / "tokenizer.json"))

    @settings(max_examples=150, deadline=None)
    @given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("ab (\n\t 0.é漢"), max_size=200))
    def same(text: str) -> None:
        # Written out, a special token's name is that token to the library.
        assume(not any(name in text for name in SPECIAL.values()))
        ids = library.encode(text, add_special_tokens=False).ids
        assert ids == tokenizer.encode(text).tolist()
        assert library.decode(ids) == text

    same()
    assert library.encode("def ").ids[0] == tokenizer.bos_id
    back = load_tokenizer(tmp_path)
    assert back.tokens == tokenizer.tokens[: back.vocab_size]
    assert not tokenizer.known[back.vocab_size :].any()
    assert (back.bos_id, back.eos_id, back.pad_id) == (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id)
    np.testing.assert_array_equal(back.known, tokenizer.known[: back.vocab_size])


def test_unlearned_ids_are_not_known() -> None:
    small = BytePairTokenizer.Config(vocab_size=500).build().fit([b"ab" * 9])
    assert small.known[: 259 + len(small.merges)].all()
    assert not small.known[259 + len(small.merges) :].any()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"has no tokenizer\.json$"),
        ({"tokenizer.model": "x"}, r"tokenizer\.model isn't a saved tokenizer: it isn't a SentencePiece model"),
        ({"tekken.json": "x"}, r"has tekken\.json, a tekken vocabulary, and no tokenizer\.json or SentencePiece"),
        ({"qwen.tiktoken": "x"}, r"has qwen\.tiktoken, a tiktoken vocabulary, and no tokenizer\.json"),
        ({"tokenizer.json": "{"}, r"tokenizer\.json isn't a saved tokenizer: Expecting"),
        ({"tokenizer.json": '{"model": 3}'}, r"tokenizer\.json has no model with a vocabulary"),
        ({"tokenizer.json": '{"model": {"vocab": {}}}'}, r"the tokenizers library can't read it"),
        ({"tokenizer.json": '{"model": {"vocab": {}}}', "tokenizer_config.json": "[]"}, "holds a list, expected"),
    ],
)
def test_folders_without_one_say_why(files: dict[str, str], message: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path)


def test_links_out_of_the_folder_are_refused_and_the_hubs_cache_is_read(tmp_path: Path) -> None:
    write_folder(tmp_path / "hub" / "blobs", byte_level())
    snapshot = tmp_path / "hub" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer.json").symlink_to("../../blobs/tokenizer.json")
    assert load_tokenizer(snapshot).digest == load_tokenizer(tmp_path / "hub" / "blobs").digest
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "tokenizer.json").symlink_to(snapshot / "tokenizer.json")
    with pytest.raises(TokenizerError, match="is a link out of its folder"):
        load_tokenizer(elsewhere)


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path, byte_level())
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TokenizerError, match=r'needs the tokenizers library: pip install "kanawa\[hf\]"'):
        load_tokenizer(folder)
