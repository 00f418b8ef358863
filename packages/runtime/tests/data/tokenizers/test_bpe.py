"""Byte-pair encoding: lossless on anything, deterministic, equal to a plain reference."""

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa_runtime.data.tokenizers import bpe, pretokens
from kanawa_runtime.data.tokenizers.bpe import BytePairTokenizer
from kanawa_runtime.data.tokenizers.bpe_training import learn_merges, merge_pair
from kanawa_runtime.data.tokenizers.byte_alphabet import FIRST_LEARNED_ID
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.tokenizer_file import TokenizerError, tokenizer_from_bytes
from kanawa_runtime.serve.growing_text import GrowingText

CODE = [Path(__file__).read_bytes(), Path(pretokens.__file__).read_bytes()]
TRAINED = BytePairTokenizer.Config(vocab_size=600, min_piece_count=2).build().fit(CODE)
TOKENIZERS = [TRAINED, ByteTokenizer.Config().build()]
TEXT = st.binary(max_size=80) | st.text(max_size=60).map(str.encode) | st.sampled_from([data[:1500] for data in CODE])


def plain_merges(counts: Counter[bytes], num_merges: int) -> list[tuple[int, int]]:
    """Learns by counting everything again before each merge."""
    pieces = [(list(piece), n) for piece, n in counts.items()]
    merges = []
    for new in range(FIRST_LEARNED_ID, FIRST_LEARNED_ID + num_merges):
        totals: Counter[tuple[int, int]] = Counter()
        for ids, n in pieces:
            for pair in zip(ids, ids[1:], strict=False):
                totals[pair] += n
        if not totals or max(totals.values()) < 2:
            break
        best = min(totals, key=lambda pair: (-totals[pair], pair))
        merges.append(best)
        pieces = [(merge_pair(ids, best, new), n) for ids, n in pieces]
    return merges


@given(st.lists(st.text("aab ", max_size=12).map(str.encode), max_size=12))
def test_incremental_training_equals_plain_training(pieces: list[bytes]) -> None:
    counts = Counter(pieces)
    assert learn_merges(counts, 12, FIRST_LEARNED_ID) == plain_merges(counts, 12)


def test_training_on_code_equals_plain_training() -> None:
    counts = pretokens.count(CODE)
    assert learn_merges(counts, 60, FIRST_LEARNED_ID) == plain_merges(counts, 60)


@given(TEXT)
def test_pieces_concatenate_to_the_text(data: bytes) -> None:
    assert b"".join(pretokens.split(data)) == data


#: Runs longer than any piece, and every kind of neighbour.
RUNS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b" ", b"\n", b"\t", b"7", b".", b"\xc3\xa9", b"def f(x):\n"]), st.integers(1, 400)
    ),
    max_size=12,
).map(lambda runs: b"".join(piece * count for piece, count in runs))


@given(RUNS)
def test_pieces_of_parts_are_those_of_the_whole(data: bytes) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pretokens, "_PART_BYTES", 600)
        assert [piece for pieces in pretokens.split_by_parts(data) for piece in pieces] == pretokens.split(data)


@given(st.lists(st.binary(max_size=9), max_size=20), st.integers(1, 40))
def test_the_sample_is_the_documents_of_the_smallest_hashes(documents: list[bytes], limit: int) -> None:
    wanted, room = [], limit
    for data in sorted(documents, key=lambda data: hashlib.sha256(data).digest()):
        if room > 0:
            wanted.append(data[:room])
            room -= len(data)
    assert bpe._sample(iter(documents), limit) == wanted


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(data=TEXT)
def test_lossless(tokenizer: Tokenizer, data: bytes) -> None:
    ids = tokenizer.encode(data)
    assert ids.dtype == np.int32
    assert tokenizer.decode_bytes(ids) == data
    assert tokenizer.byte_lengths[ids].sum() == len(data)
    assert not {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id} & set(ids.tolist())


@settings(deadline=None, max_examples=50)
@given(TEXT)
def test_encoding_applies_merges_in_training_order(data: bytes) -> None:
    expected: list[int] = []
    for piece in pretokens.split(data):
        ids = list(piece)
        for rank, pair in enumerate(TRAINED.merges):
            ids = merge_pair(ids, pair, FIRST_LEARNED_ID + rank)
        expected += ids
    assert TRAINED.encode(data).tolist() == expected


def test_indentation_is_cheap() -> None:
    line_end = b"):\n        return"
    assert len(pretokens.split(line_end)) == 2
    text = b"    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n"
    assert len(TRAINED.encode(text)) < len(text) / 2.5


def test_training_ignores_the_order_of_documents_and_respects_the_sample() -> None:
    cfg = BytePairTokenizer.Config(vocab_size=500, min_piece_count=2)
    assert cfg.clone().build().fit(reversed(CODE)).digest == cfg.clone().build().fit(CODE).digest
    # One huge document must not break the bound on training time.
    sampled = cfg.clone(sample_bytes=1000).build().fit([b"".join(CODE)])
    assert len(sampled.merges) < 241


def test_decoding_invalid_bytes_and_ids() -> None:
    tokenizer = TOKENIZERS[1]
    assert tokenizer.decode([0x61, 0xC3, tokenizer.eos_id, 0x62]) == "a\ufffdb"
    assert tokenizer.encode("é").tolist() == [0xC3, 0xA9]
    with pytest.raises(TokenizerError, match="token id 259 is outside the vocabulary: valid ids are 0 to 258"):
        tokenizer.decode([5, 259])


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(data=TEXT)
def test_streamed_text_equals_decoded_text(tokenizer: Tokenizer, data: bytes) -> None:
    ids = tokenizer.encode(data).tolist()
    stream = GrowingText(tokenizer)
    assert "".join(stream.push(i) for i in ids) + stream.finish() == tokenizer.decode(ids)


def test_a_character_appears_whole() -> None:
    stream = GrowingText(TOKENIZERS[1])
    assert [stream.push(byte) for byte in "é!".encode()] == ["", "é", "!"]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_saving_and_loading(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert type(loaded) is type(tokenizer)
    assert loaded.digest == tokenizer.digest
    assert loaded.encode(CODE[0]).tolist() == tokenizer.encode(CODE[0]).tolist()


def test_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"can't read the tokenizer .*absent\.json"):
        load_tokenizer(tmp_path / "absent.json")
    (tmp_path / "bad.json").write_text('{"format": "other"}')
    with pytest.raises(TokenizerError, match=r"bad\.json isn't a saved tokenizer: expected format"):
        load_tokenizer(tmp_path / "bad.json")
    content = TRAINED.to_bytes().replace(b'"merges":[[', b'"merges":[[4000,1],[')
    with pytest.raises(ValueError, match="merge 0 is .* uses an id that isn't made yet"):
        tokenizer_from_bytes(content)


def test_misuse_says_what_to_do() -> None:
    with pytest.raises(TokenizerError, match="learned nothing yet: call fit"):
        BytePairTokenizer.Config().build().encode(b"x")
    with pytest.raises(TokenizerError, match="vocab_size=259 leaves no room to learn"):
        BytePairTokenizer.Config(vocab_size=259).build()


def test_a_poor_corpus_keeps_the_vocabulary_size(caplog: pytest.LogCaptureFixture) -> None:
    poor = BytePairTokenizer.Config(vocab_size=300).build().fit([b"ab ab ab ab"])
    assert poor.vocab_size == 300 == len(poor.tokens) == len(poor.byte_lengths)
    assert "the last ids stay unused" in caplog.text
