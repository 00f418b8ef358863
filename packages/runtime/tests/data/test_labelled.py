"""Rows of labelled texts: where the label is, what is cut, and what can't be learned from."""

import json

import numpy as np
import pytest
from kanawa.errors import KanawaError
from kanawa_runtime.data.labelled import LabelledTexts
from kanawa_runtime.data.records.files import RecordFiles
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer

BYTES = ByteTokenizer.Config().build()


@pytest.fixture
def rows(tmp_path):
    BYTES.save(tmp_path / "tokenizer.json")

    def made(*records, **fields):
        (tmp_path / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
        files = RecordFiles.Config(files=(str(tmp_path / "records.jsonl"),))
        options = {"labels": ("bad", "good"), "sequence_length": 16, "validation_one_in": 0, "epochs": 1, **fields}
        return LabelledTexts.Config(records=files, tokenizer_file=str(tmp_path / "tokenizer.json"), **options).build()

    return made


def segments(row):
    """Returns each segment's ids, with the labels of its tokens by place."""
    found = []
    for number in range(1, row["segment_ids"].max() + 1):
        here = np.flatnonzero(row["segment_ids"] == number)
        marked = {int(i): int(row["target_ids"][here][i]) for i in np.flatnonzero(row["loss_weights"][here])}
        found.append((row["input_ids"][here].tolist(), marked))
    return found


@pytest.mark.parametrize(("place", "at"), [("first", 0), ("last", -1)])
def test_texts_are_segments_with_one_target(rows, place, at):
    source = rows({"text": "ab", "label": "good"}, {"text": "xyz", "label": 0}, place=place, shuffle=False)
    assert source.num_rows == 1
    found = segments(source.row(0))
    whole = {"ab": 1, "xyz": 0}
    for ids, marked in found:
        text = BYTES.decode(ids)
        assert ids == [BYTES.bos_id, *text.encode()]
        assert marked == {at % len(ids): whole.pop(text)}
    assert not whole


def test_words_have_labels_at_their_first_token(rows):
    record = {"tokens": ["ab", "c"], "labels": ["good", "bad"]}
    ((ids, marked),) = segments(rows(record, place="tokens").row(0))
    assert (BYTES.decode(ids), marked) == ("ab c", {1: 1, 3: 0})


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_text_that_is_too_long_loses_its_end_and_no_label(rows, place):
    ((ids, marked),) = segments(rows({"text": "a" * 40, "label": "good"}, place=place).row(0))
    assert (len(ids), marked) == (16, {0 if place == "first" else 15: 1})


@pytest.mark.parametrize(
    ("record", "fields", "says"),
    [
        ({"text": "a", "label": "goood"}, {}, "found 'goood', expected one of bad, good, or its number; did you"),
        ({"text": "a", "label": 2}, {}, "label: found 2, expected one of bad, good"),
        ({"text": "a"}, {}, "label: there is no such column"),
        ({"txt": "a", "label": 1}, {}, "text: there is no such column; did you mean 'txt'"),
        ({"text": 1, "label": 1}, {}, "text: found 1, expected a text"),
        ({"tokens": ["a"], "labels": []}, {"place": "tokens"}, "there are 1 words and 0 labels"),
        ({"tokens": ["a", 1], "labels": [0, 1]}, {"place": "tokens"}, r"tokens\[1\]: expected a text, found 1"),
    ],
)
def test_what_cant_be_learned_from(rows, record, fields, says):
    with pytest.raises(KanawaError, match=says):
        rows(record, **fields).row(0)
