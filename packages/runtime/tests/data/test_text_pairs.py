"""Pairs of texts for encoder-decoders: what is read, what is written, which are held out, and what is refused."""

import json

import pytest
from kanawa.testing.data_source import DataSourceConformance
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.files import RecordFiles
from kanawa_runtime.data.text_pairs import TextPairs
from kanawa_runtime.data.tokenizers.byte_alphabet import BOS_ID, EOS_ID, PAD_ID
from kanawa_runtime.train.trainer import Trainer

SIZES = {"sequence_length": 9, "target_length": 5}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"input": f"say {n}", "target": f"{n}!"}) + "\n" for n in range(9)))
    return path


def read(path, **fields):
    records = RecordFiles.Config(files=(path.name,), root=str(path.parent))
    return TextPairs.Config(records=records, **{**SIZES, "validation_one_in": 3, **fields}).build()


class TestTextPairs(DataSourceConformance):
    @pytest.fixture(autouse=True)
    def _table(self, table):
        self.table = table

    def source(self):
        return read(self.table)


def test_a_row_is_both_texts_and_the_decoder_sees_what_it_wrote_before(table):
    source = read(table, shuffle=False, validation_one_in=0)
    row = source.row(3)
    assert row["input_ids"].tolist() == [BOS_ID, *b"say 3", EOS_ID, PAD_ID, PAD_ID]
    assert row["target_ids"].tolist() == [BOS_ID, *b"3!", EOS_ID, PAD_ID]
    assert row["decoder_input_ids"].tolist() == [PAD_ID, BOS_ID, *b"3!", PAD_ID]
    assert row["segment_ids"].sum() == 7 and row["loss_weights"].tolist() == [1, 1, 1, 1, 0]
    assert source.shown(row).text == "say 3 -> 3!" and source.record(3)["target"] == "3!"
    prefixed = read(table, prefix="do: ", shuffle=False, validation_one_in=0)
    assert prefixed.shown(prefixed.row(0)).text == "do: say -> 0!", "what is too long loses its end"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"input": "a"}', "pairs.jsonl:10: there is no column target"),
        ('{"input": "a", "target": ""}', "pairs.jsonl:10: target is '', expected a text"),
        ('{"input": 3, "target": "a"}', "pairs.jsonl:10: input is 3, expected a text"),
    ],
)
def test_bad_pairs_stop_or_are_counted(table, line, problem):
    table.write_text(table.read_text() + line + "\n")
    with pytest.raises(CorpusError, match=f"{problem}.*leave such records out"):
        read(table).row(0)
    assert read(table, on_bad="skip").account() | {"reasons": []} == {
        "records": 10, "skipped": 1, "unreadable_rows": 0, "unreadable_files": 0, "reasons": [],
    }  # fmt: skip


def test_without_cutting_a_pair_that_is_too_long_is_a_bad_one(table):
    with pytest.raises(CorpusError, match=r"pairs.jsonl:1: the text 'say 0' has more ids than data.sequence_length=6"):
        read(table, cut=False, sequence_length=6, shuffle=False, validation_one_in=0).row(0)
    skipping = read(table, cut=False, sequence_length=6, on_bad="skip")
    assert not skipping.row(0)["loss_weights"].any()


def test_records_with_both_columns_are_pairs_and_other_files_are_text(table):
    experiment = Trainer.Config(data=TextPairs.Config(records=RecordFiles.Config(files=()), sequence_length=20))
    made = TextPairs.Config.of_files(f"{table}:target_length=7,on_bad=skip", experiment)
    assert (made.sequence_length, made.target_length, made.on_bad) == (20, 7, "skip")
    assert made.build().once().num_rows == 9
    other = table.with_name("other.jsonl")
    other.write_text('{"text": "a"}\n')
    assert TextPairs.Config.of_files(str(other), experiment) is None
    assert TextPairs.Config.of_files(f"{other}:input=text,target=text", experiment).input == "text"
