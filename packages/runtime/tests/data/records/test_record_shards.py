"""Records encoded in shards: in parallel, resumed, without holding them in memory, and mixed."""

import datetime
import io
import json
import pickle
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kanawa_runtime.data import encoding
from kanawa_runtime.data.chats.fine_tuning import SupervisedFineTuning
from kanawa_runtime.data.chats.source import ChatSource
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.other_data import on_other_data
from kanawa_runtime.data.records import source as records_source
from kanawa_runtime.data.records.files import RecordFiles
from kanawa_runtime.data.records.record import read_columns, stored_columns
from kanawa_runtime.data.records.source import RecordEncoder
from kanawa_runtime.data.shards import write_shard
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.experiments.template import LanguageModelTemplate
from kanawa_runtime.rollouts.grpo import ask
from kanawa_runtime.rollouts.prompts import Grouped
from tiny_lm import TinyLM


def source(folder: Path, count: int, **fields: Any) -> Any:
    """Returns rows of so many prompts with completions; every fifth is too long, every seventh can't be read."""
    long = "c" * 80
    records = [
        {"prompt": f"{n}?", "completion": "c" * (n % 9 + 1) if n % 5 else long, "number": n}
        if n % 7 else {"prompt": 3}
        for n in range(count)
    ]  # fmt: skip
    lines = [json.dumps(record) for record in records]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    tokenizer = folder / "tokenizer.json"
    ByteTokenizer.Config().build().save(tokenizer)
    sizes = {"sequence_length": 64, "validation_one_in": 0, "epochs": 1, "on_bad": "skip", "encode_processes": 1}
    data = RecordFiles.Config(files=("a.jsonl",), root=str(folder))
    return ChatSource.Config(records=data, tokenizer_file=str(tokenizer), **{**sizes, **fields}).build()


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_source, "BATCH_BYTES", 2048)


def files(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((cache / "shards").glob("*/*.shard"))}


def test_processes_make_what_one_makes(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = source(tmp_path, 200)
    account = alone.account()
    assert account["records"] == 200 and account["tokens"] == alone.encoded.num_predictions.sum()
    assert alone.reading.skipped == 29 and alone.reading.cut == 34
    assert account["reasons"][0].startswith("a.jsonl:1: ")
    made = files(cache)
    assert len(made) > 3
    monkeypatch.setenv("KANAWA_CACHE", str(cache / "other"))
    beside = source(tmp_path, 200, encode_processes=2)
    for index in range(alone.num_rows):
        assert beside.record(index) == alone.record(index)
        for name, array in alone.row(index).items():
            np.testing.assert_array_equal(beside.row(index)[name], array)
    assert files(cache / "other") == made
    assert beside.digest == alone.digest


def test_what_is_wrong_with_a_record_leaves_the_process_that_encodes_it(tmp_path: Path) -> None:
    encoder, asked, answers = RecordEncoder(source(tmp_path, 9, on_bad="stop")), io.BytesIO(), io.BytesIO()
    for message in ((encoder, str(tmp_path)), ("key", [("a.jsonl:1", stored_columns({"prompt": 3}))])):
        encoding._send(asked, pickle.dumps(message))
    asked.seek(0)
    encoding._work(asked, answers)
    answers.seek(0)
    raised = pickle.loads(encoding._received(answers) or b"")
    assert type(raised) is CorpusError
    assert str(raised).startswith("a.jsonl:1: prompt: ") and "set data.on_bad=skip to leave" in str(raised)


def test_a_build_that_ended_resumes_and_more_records_are_all_that_is_encoded(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    def held(folder: Path, key: str, *rest: Any, **more: Any) -> Any:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(key)
        return write_shard(folder, key, *rest, **more)

    monkeypatch.setattr(records_source, "write_shard", held)
    with pytest.raises(KeyboardInterrupt):
        source(tmp_path, 200).row(0)
    before, written[:] = list(files(cache)), []
    monkeypatch.setattr(records_source, "write_shard", lambda f, key, *a, **b: written.append(key) or
                        write_shard(f, key, *a, **b))  # fmt: skip
    resumed = source(tmp_path, 200)
    assert len(before) == 2 and len(resumed.encoded) == 171
    assert len(written) == len(files(cache)) - 2 > 0
    written.clear()
    assert source(tmp_path, 201).reading.records == 201
    assert len(written) == 1


def test_records_that_change_under_a_run_are_an_error(tmp_path: Path, cache: Path) -> None:
    opened = source(tmp_path, 40)
    assert opened.digest
    source(tmp_path, 41)
    with pytest.raises(CorpusError, match="the records of a.jsonl changed while they were read"):
        opened.row(0)


def test_a_damaged_shard_is_made_again(tmp_path: Path, cache: Path) -> None:
    row = source(tmp_path, 60).record(3)
    for path in (cache / "shards").glob("*/*.shard"):
        content = bytearray(path.read_bytes())
        content[-50] ^= 1
        path.write_bytes(content)
    assert source(tmp_path, 60).record(3) == row


def test_memory_doesnt_grow_with_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_source, "BATCH_BYTES", 1 << 16)
    peaks = []
    for count in (60, 900):
        lines = [json.dumps({"prompt": f"{n}", "completion": "long " * 400}) for n in range(count)]
        (tmp_path / f"{count}.jsonl").write_text("\n".join(lines))
        cfg = source(tmp_path, 1).config.clone().set(
            records=RecordFiles.Config(files=(f"{count}.jsonl",), root=str(tmp_path)), validation_one_in=20
        )  # fmt: skip
        tracemalloc.start()
        made = cfg.build()
        assert made.record(0)["completion"] and made.account()["records"]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (1 << 19), f"0.1 MB of records took {peaks[0]} bytes, 1.8 MB {peaks[1]}"


def test_columns_keep_the_types_of_tables() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    fields = {
        "bytes": b"\0\xff", "day": datetime.date(2026, 1, 2), "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 6, zone),
        "time": datetime.time(3, 4), "span": datetime.timedelta(days=-1, microseconds=3), "price": Decimal("1.10"),
        "nested": [{"a": None, "b": [1.5, True]}], "text": "\ud800ü\0", "array": np.arange(3), "one": np.float32(2),
    }  # fmt: skip
    assert read_columns(stored_columns(fields)) == {**fields, "array": [0, 1, 2], "one": 2.0}


def test_files_by_weights_become_conversations_and_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(records_source, "BATCH_BYTES", 1 << 20)
    for name in "ab":
        lines = [json.dumps({"prompt": f"{name}{n}", "completion": "y" * (n % 5 + 1), "n": n}) for n in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    tokenizer = ByteTokenizer.Config().build()
    tokenizer.save(tmp_path / "tokenizer.json")
    base = LanguageModelTemplate().experiment(TinyLM.Config(vocab_size=300))
    base.data.set(sequence_length=32)
    mixed = on_other_data(base, "a.jsonl*0.7,b.jsonl*0.3", tmp_path / "tokenizer.json")
    rows = SupervisedFineTuning.Config().build()(mixed.clone()).data.build()
    shares = sum(rows.row(index)["sources"] for index in range(200)) / 200
    np.testing.assert_allclose(shares, [0.7, 0.3], atol=0.01)
    assert set(rows.account()) == {"a", "b"} and rows.account()["a"]["records"] == 58
    asked_for = mixed.clone()
    ask(asked_for)
    prompts = Grouped.Config(source=asked_for.data, group_size=2, batch_size=4, sequence_length=32).build()
    seen = {}
    for index in range(0, 400, 2):
        one = prompts.asked(index, 0, None)
        assert prompts.asked(index + 1, 0, None) == one
        assert tokenizer.decode(one.prompt) == one.record["prompt"] and one.record["prompt"][0] == one.record["source"]
        assert tokenizer.decode(one.answer) == one.record["completion"]
        seen[one.record["source"]] = seen.get(one.record["source"], 0) + 1
    assert abs(seen["a"] / 200 - 0.7) < 0.02
