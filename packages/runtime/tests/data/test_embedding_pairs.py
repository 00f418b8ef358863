"""Rows of pairs of texts: each text whole in a segment of its own, partners side by side; bad records are named."""

import json

import pytest
from kanawa.testing.data_source import DataSourceConformance
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.preferences.embedding import EmbeddingPairs
from kanawa_runtime.data.records.files import RecordFiles
from words_of_bert import WORDS, tokenizer


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]", "sep_token": "[SEP]"}))
    words = WORDS[5:]
    lines = [{"query": words[n], "positive": f"{words[n + 1]} {words[n]}"} for n in range(9)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def source(folder, **fields):
    records = RecordFiles.Config(files=("pairs.jsonl",), root=str(folder))
    sizes = {"sequence_length": 20, "pairs_per_row": 3, "validation_one_in": 3, "encode_processes": 1}
    return EmbeddingPairs.Config(records=records, tokenizer_file=str(folder), **{**sizes, **fields}).build()


class TestEmbeddingPairs(DataSourceConformance):
    unsupported = {"next token": "the last token of a segment is an input, too"}

    @pytest.fixture(autouse=True)
    def _folder(self, folder):
        self.folder = folder

    def source(self):
        return source(self.folder)


def test_partners_are_neighbouring_segments_read_whole(folder):
    made = source(folder)
    begin, end = WORDS.index("[CLS]"), WORDS.index("[SEP]")
    for index in range(4):
        row = made.row(index)
        assert row["labels"].sum() == row["segment_ids"].max() / 2 > 0
        for pair in range(int(row["labels"].sum())):
            query, positive = (row["input_ids"][row["segment_ids"] == 2 * pair + side].tolist() for side in (1, 2))
            assert query == [begin, query[1], end] and positive == [begin, query[1] + 1, query[1], end]
    assert made.record(0)["query"] in WORDS


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"query": "a"}, "positive: there is no such column"),
        ({"query": "a", "positive": " "}, "positive: found ' ', expected a text"),
        ({"query": 7, "positive": "a"}, "query: found 7, expected a text"),
    ],
)
def test_bad_pairs_stop_or_are_left_out(folder, line, problem):
    with (folder / "pairs.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(CorpusError, match=rf"pairs.jsonl:10: {problem}"):
        source(folder, validation_one_in=0).row(0)
    assert source(folder, validation_one_in=0, on_bad="skip").account()["skipped"] == 1
