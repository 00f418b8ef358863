"""Rows of text, checked against the documents themselves."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from kanawa_runtime.data.corpus import EmbeddedCorpus
from kanawa_runtime.data.packing import BestFitPacking, ConcatenatedPacking, Packing
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.text_files import TextFiles
from kanawa_runtime.data.tokenizers.bpe import BytePairTokenizer
from kanawa_runtime.data.tokenizers.byte_alphabet import BOS_ID, EOS_ID, PAD_ID
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer

FIELDS = ("input_ids", "target_ids", "positions", "segment_ids", "loss_weights")


def config(sources: Path, **fields: object) -> TextSource.Config:
    cfg = TextSource.Config(
        corpus=EmbeddedCorpus.Config(root=str(sources)),
        tokenizer=ByteTokenizer.Config(),
        sequence_length=64,
        epochs=1,
        window_documents=8,
    )
    return cfg.set(**fields)


def segments(row: dict[str, np.ndarray]) -> list[slice]:
    """Returns the extent of each segment of `row`, by segment id."""
    ids = row["segment_ids"]
    bounds = [np.flatnonzero(ids == i) for i in range(1, int(ids.max()) + 1)]
    assert all((np.diff(found) == 1).all() for found in bounds)
    return [slice(int(found[0]), int(found[-1]) + 1) for found in bounds]


@pytest.mark.parametrize("packing", [BestFitPacking, ConcatenatedPacking])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_targets_are_the_documents_exactly_once(sources: Path, packing: type[Packing], split: str) -> None:
    source = config(sources, packing=packing.Config(), split=split).build()
    pieces = []
    for row in map(source.row, range(source.num_rows)):
        assert all(row[name].shape == (64,) for name in FIELDS)
        assert [row[name].dtype for name in FIELDS] == [np.int32] * 4 + [np.float32]
        padding = row["segment_ids"] == 0
        assert (row["loss_weights"] == ~padding).all()
        assert (row["input_ids"][padding] == PAD_ID).all()
        for extent in segments(row):
            inputs, targets = row["input_ids"][extent], row["target_ids"][extent]
            assert (inputs[1:] == targets[:-1]).all()
            assert (row["positions"][extent] == np.arange(len(inputs))).all()
            pieces.append((int(inputs[0]), targets.tolist()))
    documents = list(EmbeddedCorpus.Config(root=str(sources)).build().documents(split))
    assert sum((targets for _, targets in pieces), []).count(EOS_ID) == len(documents)
    assert sum(first == BOS_ID for first, _ in pieces) == len(documents)
    targets = np.concatenate([targets for _, targets in pieces])
    expected = np.concatenate([[*document.data, EOS_ID] for document in documents])
    assert sorted(targets.tolist()) == sorted(expected.tolist())
    texts = [document.data for document in documents]
    for first, ids in pieces:
        text = bytes(i for i in ids if i < 256)
        starts = [t for t in texts if t.startswith(text)] if first == BOS_ID else texts
        assert any(t.endswith(text) if ids[-1] == EOS_ID else text in t for t in starts)
    num_bytes = sum(len(document.data) for document in documents)
    covered = [
        source.target_bytes(row["target_ids"], row["loss_weights"]) for row in map(source.row, range(source.num_rows))
    ]
    assert sum(covered) == num_bytes


def test_a_row_can_be_one_segment(sources: Path) -> None:
    packing = ConcatenatedPacking.Config(separate_documents=False)
    row = config(sources, packing=packing, shuffle=False).build().row(0)
    assert (row["segment_ids"] == 1).all()
    assert (row["positions"] == np.arange(64)).all()
    assert EOS_ID not in row["input_ids"]  # A document is entered by its begin token.


def test_unshuffled_text_reads_in_order(sources: Path) -> None:
    cfg = config(sources, packing=ConcatenatedPacking.Config(), shuffle=False, window_documents=1000)
    source = cfg.build()
    targets = np.concatenate([source.row(i)["target_ids"] for i in range(source.num_rows)])
    documents = EmbeddedCorpus.Config(root=str(sources)).build().documents("train")
    assert bytes(t for t in targets.tolist() if t < 256) == b"".join(d.data for d in documents)


def test_equal_configs_give_equal_rows_and_digests(sources: Path, cache: Path) -> None:
    tokenizer = BytePairTokenizer.Config(vocab_size=400)
    first = config(sources, tokenizer=tokenizer, epochs=None).build()
    rows = [first.row(i) for i in (0, 200, 3)]
    assert {path.name for path in cache.iterdir()} == {"encoded", "shards", "tokenizers"}
    again = config(sources, tokenizer=tokenizer, epochs=None).build()
    for one, index in zip(rows, (0, 200, 3), strict=True):
        assert all((one[name] == again.row(index)[name]).all() for name in FIELDS)
    assert first.digest == again.digest
    assert first.num_rows is None and first.vocab_size == 400


def test_damaged_cache_changes_nothing(sources: Path, cache: Path) -> None:
    cfg = config(sources, tokenizer=BytePairTokenizer.Config(vocab_size=400))
    row = cfg.clone().build().row(1)
    for path in filter(Path.is_file, cache.rglob("*")):
        content = path.read_bytes()
        path.write_bytes(content[:100] + b"!" + content[101:])
    again = cfg.clone().build().row(1)
    assert all((row[name] == again[name]).all() for name in FIELDS)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"sequence_length": 32},
        {"split": "validation"},
        {"shuffle": False},
        {"epochs": 2},
        {"window_documents": 9},
        {"packing": ConcatenatedPacking.Config()},
        {"tokenizer": BytePairTokenizer.Config(vocab_size=300)},
    ],
)
def test_the_digest_covers_every_setting(sources: Path, change: dict) -> None:
    assert config(sources, **change).build().digest != config(sources).build().digest


def test_the_digest_forgets_where_things_lie(sources: Path, tmp_path: Path) -> None:
    cfg = config(sources, tokenizer=BytePairTokenizer.Config(vocab_size=300))
    source = cfg.clone().build()
    source.tokenizer.save(tmp_path / "tokenizer.json")
    moved = cfg.clone(tokenizer_file=str(tmp_path / "tokenizer.json")).build()
    assert moved.digest == source.digest
    assert moved.vocab_size == 300


def test_building_a_source_reads_nothing(tmp_path: Path) -> None:
    source = config(tmp_path / "absent", tokenizer=BytePairTokenizer.Config(), epochs=None).build()
    assert source.vocab_size == 2048 and source.num_rows is None


def test_random_tokens() -> None:
    source = RandomTokens.Config(sequence_length=100, vocab_size=50, num_rows=3).build()
    row = source.row(2)
    assert (row["input_ids"][1:] == row["target_ids"][:-1]).all()
    assert set(np.unique(np.concatenate([source.row(i)["input_ids"] for i in range(3)]))) == set(range(50))
    assert (source.row(2)["input_ids"] == row["input_ids"]).all()
    assert (source.row(1)["input_ids"] != row["input_ids"]).any()
    other = RandomTokens.Config(sequence_length=100, vocab_size=50, seed=1).build()
    assert (other.row(2)["input_ids"] != row["input_ids"]).any()
    assert source.digest != other.digest
    assert source.target_bytes(row["target_ids"], row["loss_weights"]) is None
    assert source.once() is source and other.once() is None
    with pytest.raises(IndexError, match="row 3 doesn't exist: num_rows=3"):
        source.row(3)


def test_digests_and_rows_are_those_of_earlier_versions(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"{i}.txt").write_text(f"document {i} says so\n" * (i + 1))
    made = TextSource.Config(
        corpus=TextFiles.Config(files=("*.txt",), root=str(tmp_path)),
        tokenizer=ByteTokenizer.Config(),
        sequence_length=32,
        window_documents=16,
        seed=3,
    ).build()
    seen = hashlib.sha256()
    for index in (0, 1, 5, 17, 40):
        row = made.row(index)
        for name in sorted(row):
            seen.update(row[name].tobytes())
    # As they were before text was encoded into shards: runs of that time resume.
    assert made.digest == "6d84f74ac664025c3ac745fd1ef6d3a0a955f74b408f774ad7d2d88bb4ed7aa3"
    assert seen.hexdigest() == "4c5d865366c2a69f4e25c1ce46d0a346d0d347b2fdb1d578ebe0f665d9f06a3a"
