"""Rows of pairs: what they hold, what is skipped or refused, and which completions KTO's are compared with."""

import json

import numpy as np
import pytest
from kanawa_runtime.data.errors import CorpusError, RowError
from kanawa_runtime.data.packing import ConcatenatedPacking
from kanawa_runtime.data.preferences.mixture import PairMixture
from kanawa_runtime.data.preferences.reference import sums_digest, weights_digest
from kanawa_runtime.data.preferences.source import JudgedSource, PairSource
from kanawa_runtime.data.records.files import RecordFiles
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer

SPECIAL = ByteTokenizer.Config().build()


@pytest.fixture
def source(tmp_path):
    def make(kind, records, name="pairs.jsonl", **fields):
        (tmp_path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
        SPECIAL.save(tmp_path / "tokenizer.json")
        data = RecordFiles.Config(files=(name,), root=str(tmp_path))
        sizes = {"sequence_length": 48, "validation_one_in": 0, "epochs": 1, "shuffle": False, **fields}
        return kind.Config(records=data, tokenizer_file=str(tmp_path / "tokenizer.json"), **sizes).build()

    return make


def pair(prompt, chosen, rejected):
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def segments(row):
    """Returns (label, texts of prompt and completion of both segments) of each pair, from the arrays alone."""
    found = []
    for number, label in enumerate(row["labels"].tolist()):
        if not label:
            continue
        both = []
        for segment in (2 * number + 1, 2 * number + 2):
            mine = row["segment_ids"] == segment
            ids, targets, weights = (row[name][mine] for name in ("input_ids", "target_ids", "loss_weights"))
            assert (row["positions"][mine] == np.arange(mine.sum())).all()
            # Inputs hold every token; targets are the next ones, and the last target weighs nothing.
            assert (ids[1:] == targets[:-1]).all()
            assert weights[-1] == 0
            both.append((SPECIAL.decode(ids[: weights.argmax() + 1]), SPECIAL.decode(targets[weights > 0])))
            assert targets[weights > 0][-1] == SPECIAL.eos_id
        found.append((label, *both))
    return found


def test_rows_hold_whole_pairs_and_every_pair_once(source):
    records = [pair(f"p{i}", "a" * (i % 5 + 1), "b" * (i % 3 + 2)) for i in range(23)]
    rows = source(PairSource, records, pairs_per_row=2)
    found = [each for index in range(rows.num_rows) for each in segments(rows.row(index))]
    wanted = [(1.0, (r["prompt"], r["chosen"]), (r["prompt"], r["rejected"])) for r in records]
    assert sorted(found) == sorted(wanted)
    assert max(np.count_nonzero(rows.row(index)["labels"]) for index in range(rows.num_rows)) == 2
    assert rows.fields["labels"].shape == (2,)
    assert rows.row(0).keys() == {name for name, field in rows.fields.items() if field is not None}
    assert rows.record(0)["prompt"] == segments(rows.row(0))[0][1][0]


def test_pairs_that_fill_a_row_exactly_are_kept_and_longer_ones_skipped_and_counted(source, caplog):
    # Three tokens besides: two beginnings, two ends, and one prompt each: 2 + 2 + 2 + completions.
    full = 48 - 6
    records = [pair("p", "a" * (full - 1), "b"), pair("p", "a" * full, "b"), pair("p", "c", "d")]
    rows = source(PairSource, records)
    found = [each for index in range(rows.num_rows) for each in segments(rows.row(index))]
    assert sorted(completion for _, (_, completion), _ in found) == sorted(["a" * (full - 1), "c"])
    assert "1 of 3 records skipped" in caplog.text
    with pytest.raises(CorpusError, match=r"pairs.jsonl:2: 50 tokens"):
        source(PairSource, records, on_long="stop").row(0)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (pair("p", "a", "a"), "chosen: it equals `rejected`"),
        (pair("p", "a", ""), "rejected: nothing of it is an answer"),
        ({"prompt": "p", "chosen": "a"}, "rejected: there is no such column; choices: chosen, prompt"),
        ({"prompt": "p", "choosen": "a", "rejected": "b"}, "chosen: there is no such column.*choosen"),
        ({"chosen": "a", "rejected": "b"}, "prompt: there is no such column; found chosen, rejected"),
        (pair("p", ["a"], "b"), "chosen: prompt and completion have to be both texts"),
    ],
)
def test_bad_pairs_stop_the_run_or_are_counted(source, record, message, caplog):
    with pytest.raises(CorpusError, match=f"pairs.jsonl:1: {message}.*; set data.on_bad=skip"):
        source(PairSource, [record, pair("p", "a", "b")]).row(0)
    rows = source(PairSource, [record, pair("p", "a", "b")], on_bad="skip")
    assert len(segments(rows.row(0))) == 1
    assert "1 of 2 records skipped" in caplog.text


def test_judged_completions_have_their_label_and_the_completion_before_as_far_as_it_fits(source):
    records = [
        {"prompt": f"q{i}", "completion": c, "label": bool(i % 2)} for i, c in enumerate(["aa", "b", "c" * 30, "d"])
    ]
    rows = source(JudgedSource, records, pairs_per_row=1, mismatch_within=2)
    found = [rows.row(index) for index in range(rows.num_rows)]
    by_prompt = {}
    for row in found:
        mine = row["segment_ids"] == 2
        other = SPECIAL.decode(row["target_ids"][mine & (row["loss_weights"] > 0)])
        own = SPECIAL.decode(row["target_ids"][(row["segment_ids"] == 1) & (row["loss_weights"] > 0)])
        prompt = SPECIAL.decode(row["input_ids"][mine][:3])
        by_prompt[prompt] = (row["labels"].tolist(), own, other)
    assert by_prompt["q0"] == ([-1.0], "aa", "b")
    assert by_prompt["q1"] == ([1.0], "b", "aa")
    assert by_prompt["q2"] == ([-1.0], "c" * 30, "d")
    assert by_prompt["q3"] == ([1.0], "d", "c" * 30)
    # A half has 48 positions: beside a prompt of 3, 44 letters and the end fit, and beside one of 6 not all of them.
    records[2]["completion"], records[3]["prompt"] = "c" * 44, "q3333"
    long = source(JudgedSource, records, pairs_per_row=1, mismatch_within=2)
    counts = [
        [np.count_nonzero((row["segment_ids"] == half) & (row["loss_weights"] > 0)) for half in (1, 2)]
        for row in (long.row(i) for i in range(long.num_rows))
    ]
    assert sorted(counts) == [[2, 3], [2, 42], [3, 2], [45, 2]]
    records[2]["completion"] = "c" * 45
    assert source(JudgedSource, records, pairs_per_row=1, mismatch_within=2).num_rows == 3


def test_judged_completions_fill_one_half_of_a_row_and_mismatched_ones_the_other(source):
    rng = np.random.default_rng(0)
    records = [
        {"prompt": f"q{i}", "completion": "x" * int(rng.integers(1, 25)), "label": bool(i % 2)} for i in range(120)
    ]
    rows = source(JudgedSource, records, pairs_per_row=16)
    assert rows.fields["input_ids"].shape == rows.row(0)["input_ids"].shape == (96,)
    found, filled = [], 0
    for index in range(rows.num_rows):
        row = rows.row(index)
        first, second = row["segment_ids"][:48], row["segment_ids"][48:]
        assert (first[first > 0] % 2 == 1).all()
        assert (second[second > 0] % 2 == 0).all()
        found += [own for _, own, _ in segments(row)]
        filled += np.count_nonzero(row["segment_ids"])
    assert sorted(found) == sorted((record["prompt"], record["completion"]) for record in records)
    # A row holds three pairs of at most 29 tokens a half, more or less.
    assert filled > 0.9 * 96 * rows.num_rows


def test_labels_that_are_none_and_packings_that_cut_are_refused(source):
    with pytest.raises(CorpusError, match=r"label: it is 'yes', expected true or false"):
        source(JudgedSource, [{"prompt": "a", "completion": "b", "label": "yes"}]).row(0)
    with pytest.raises(Exception, match="pairs must not be cut"):
        source(PairSource, [pair("p", "a", "b")], packing=ConcatenatedPacking.Config())


def test_the_reference_may_be_columns_of_the_records(source):
    records = [
        pair(f"p{i}", "a", "bb") | {"ref_chosen_logps": -1.0 - i, "ref_rejected_logps": -2.5 - i} for i in range(3)
    ]
    rows = source(PairSource, records, reference_columns=True, pairs_per_row=4)
    row = rows.row(0)
    assert list(rows.fields)[-2:] == ["reference_logprobs", "sources"]
    by_prompt = {prompt: row["reference_logprobs"][2 * k : 2 * k + 2].tolist()
                 for k, (_, (prompt, _), _) in enumerate(segments(row))}  # fmt: skip
    assert by_prompt == {f"p{i}": [-1.0 - i, -2.5 - i] for i in range(3)}
    del records[1]["ref_rejected_logps"]
    with pytest.raises(CorpusError, match=r"pairs.jsonl:2: ref_rejected_logps: there is no such column, expected"):
        source(PairSource, records, reference_columns=True).row(0)


def test_files_of_pairs_are_mixed_by_weight_and_every_pair_of_an_epoch_comes_once(source):
    sources = {}
    for name, count in (("a", 21), ("b", 9)):
        records = [pair(f"{name}{i}", "g" * (i % 4 + 1), "b" * (i % 3 + 5)) for i in range(count)]
        sources[name] = source(PairSource, records, f"{name}.jsonl", pairs_per_row=1, epochs=None).config
    sizes = {"sequence_length": 48, "block_rows": 20}
    cfg = PairMixture.Config(sources=sources, weights={"a": 0.7, "b": 0.3}, **sizes)
    rows = cfg.build()
    read = [rows.row(index) for index in range(300)]
    assert read[0].keys() == {name for name, field in rows.fields.items() if field is not None}
    assert rows.batch(**{name: read[0].get(name) for name in rows.fields}).sources.tolist() in ([1, 0], [0, 1])
    columns = np.stack([row["sources"] for row in read])
    assert columns.sum(0).tolist() == [210, 90]
    for column, (name, count) in enumerate((("a", 21), ("b", 9))):
        prompts = [segments(row)[0][1][0] for row, mine in zip(read, columns[:, column], strict=True) if mine]
        assert sorted(prompts) == sorted([f"{name}{i}" for i in range(count)] * 10)
        # Each epoch whole before the next.
        assert all(len(set(prompts[at : at + count])) == count for at in range(0, len(prompts), count))
    # From any row on, in any order, another process reads the same.
    again = cfg.build()
    for index in (299, 7, 150):
        assert all((again.row(index)[name] == read[index][name]).all() for name in read[index])
    other = cfg.clone()
    other.sources["b"].set(pairs_per_row=2)
    with pytest.raises(RowError, match=r"sources 'a' and 'b' make different rows of pairs: .*pairs_per_row"):
        other.build().fields  # noqa: B018


def test_sums_have_to_be_of_the_model_that_training_begins_with(source, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    plain = source(PairSource, [pair("p", "a", "bb")])
    digest = sums_digest(weights_digest(tmp_path / "one"), *plain.pair(0)[:2])
    record = pair("p", "a", "bb") | {"ref_chosen_logps": -1.0, "ref_rejected_logps": -2.0}
    known = source(PairSource, [record | {"ref_digest": digest}], "known.jsonl", reference_columns=True)
    known.check_start(tmp_path / "one")
    mixed = PairMixture.Config(sources={"known": known.config}, weights={"known": 1.0}, sequence_length=48).build()
    for rows in (known, mixed):
        with pytest.raises(RowError, match=r"of the model \w{16}, and training begins with .*two \(\w{16}\); write"):
            rows.check_start(tmp_path / "two")
    with pytest.raises(RowError, match="training begins with new parameters"):
        known.check_start(None)
    named = known.config.clone().set(reference_source=str(tmp_path / "one"))
    named.build().check_start(tmp_path / "two")
    # Other tools write sums without a digest.
    source(PairSource, [record], "unknown.jsonl", reference_columns=True).check_start(None)
