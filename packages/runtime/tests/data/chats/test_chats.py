"""Rows of conversations: packing, what doesn't fit, what can't be learned, and what travels with the run."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kanawa.contracts import Batch
from kanawa.errors import UsageError
from kanawa_runtime.data.chats.fine_tuning import chat_rows
from kanawa_runtime.data.chats.source import ChatSource
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.packing import OnePerRow
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.text_files import JsonLines, TextFiles
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from kanawa_runtime.rollouts.prompts import question
from kanawa_runtime.runs.tokenizer_file import tokenizer_from_bytes

from .conftest import conversation, template_source

MANY = [conversation(f"say {'word ' * (n % 7)}{n}", f"{n} {'again ' * (n % 5)}", number=n) for n in range(60)]


def answers(rows: ChatSource) -> list[list[int]]:
    """Returns the learned tokens of each conversation of all rows, segment by segment, sorted."""
    found = []
    for index in range(rows.num_rows or 0):
        row = rows.row(index)
        for segment in range(1, int(row["segment_ids"].max()) + 1):
            here = row["segment_ids"] == segment
            assert row["positions"][here].tolist() == list(range(int(here.sum())))
            found.append(row["target_ids"][here & (row["loss_weights"] > 0)].tolist())
    return sorted(found)


def test_each_conversation_is_a_segment_and_is_learned_once(source: Callable[..., ChatSource]) -> None:
    packed = source(MANY, sequence_length=256, shuffle=True)
    alone = source(MANY, sequence_length=256, packing=OnePerRow.Config())
    assert alone.num_rows == len(MANY) > 3 * (packed.num_rows or 0)
    assert answers(packed) == answers(alone)
    expected = [packed.example_of(record) for record in MANY]
    assert answers(packed) == sorted(ids[weights > 0].tolist() for ids, weights in expected)


def test_held_out_conversations_are_not_trained_on(source: Callable[..., ChatSource]) -> None:
    rows = source(MANY, validation_one_in=4)
    held_out = rows.held_out()
    assert held_out is not None
    train, held = answers(rows), answers(held_out)
    assert 5 < len(held) < 30
    assert sorted(train + held) == answers(source(MANY))


def test_rows_are_prompts_and_know_their_record(source: Callable[..., ChatSource]) -> None:
    records = [*MANY[:5], {"messages": conversation("no answer")["messages"], "number": 99}]
    cfg = source(records, shuffle=True).config.clone()
    cfg.set_prompts()
    rows = cfg.build()
    tokenizer = rows.tokenizer
    seen = set()
    for index in range(rows.num_rows):
        row, record = rows.row(index), rows.record(index)
        seen.add(record["number"])
        ids = row["input_ids"][row["segment_ids"] == 1]
        weighted = np.flatnonzero(row["loss_weights"])
        prompt = ids[: weighted[0] + 1] if weighted.size else ids
        text = tokenizer.decode_bytes(prompt).decode()
        assert text.endswith("assistant\n") and record["messages"][0]["content"] in text
        asked = question(Batch(**{name: array[None] for name, array in row.items()}), 0)
        assert asked.prompt == tuple(prompt.tolist()) and asked.answer == tuple(row["target_ids"][weighted].tolist())
        answer = tokenizer.decode(row["target_ids"][weighted])
        assert answer == (record["messages"][1]["content"] if len(record["messages"]) > 1 else "")
    assert seen == {0, 1, 2, 3, 4, 99}


LONG = [*MANY[:3], conversation("a", "b " * 300), conversation("c " * 300, "d")]


def test_long_conversations_are_cut_and_counted(
    source: Callable[..., ChatSource], caplog: pytest.LogCaptureFixture
) -> None:
    rows = source(LONG, sequence_length=128, on_bad="skip")
    with caplog.at_level(logging.WARNING):
        assert len(answers(rows)) == 4
    assert "data: 1 of 5 records skipped (chat.jsonl:5: messages: " in caplog.text
    assert "no answer begins in the first 128 (data.sequence_length)), 1 of 5 records cut" in caplog.text
    # What is counted is shown again where the rows come from the cache.
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        again = source(LONG, sequence_length=128, on_bad="skip")
        assert answers(again) == answers(rows)
    assert "1 of 5 records skipped" in caplog.text


def test_long_conversations_are_skipped_or_refused(source: Callable[..., ChatSource]) -> None:
    rows = source(LONG, sequence_length=128, on_long="skip")
    assert answers(rows) == answers(source(MANY[:3], sequence_length=128))
    assert rows.reading[:3] == (5, 2, 0)
    with pytest.raises(CorpusError, match=r"chat.jsonl:4: \d+ tokens, and a row holds data.sequence_length=128"):
        source(LONG, sequence_length=128, on_long="stop").row(0)
    with pytest.raises(CorpusError, match="no record can be learned from: 2 of 2 records skipped"):
        source(LONG[3:], sequence_length=128, on_long="skip").row(0)


BAD: list[tuple[Any, str]] = [
    ({"text": "a"}, "record: expected the columns messages, or prompt and completion; found text; text alone"),
    ({"conversations": []}, "conversations: expected at least one message"),
    ({"conversations": [{"from": "function_call", "value": "f"}]}, "conversations[0].from: found 'function_call', exp"),
    ({"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]}, "messages[0].weight: found 0.5, expected 0"),
    ({"messages": [{"role": "user", "content": "a", "weight": 1}]}, "messages[0].weight: only what the assistant says"),
    ({"messages": [{"role": "assistant", "content": "a", "weight": 0}]}, "all that the assistant says has weight 0"),
    ({"mesages": []}, "found mesages; rename mesages, if it is meant as such"),
    ({"messages": []}, "messages: expected at least one message, found an empty list"),
    ({"messages": "hi"}, "messages: expected a list of messages, found a text ('hi')"),
    ({"messages": ["hi"]}, r"messages[0]: expected an object with role and content, found a text ('hi')"),
    ({"messages": [{"from": "a narrator", "value": "a"}]}, "messages[0].from: found 'a narrator', expected one of"),
    ({"messages": [{"role": "asistant", "content": "a"}]}, "messages[0].role: found 'asistant', expected"),
    ({"messages": [{"role": "user"}]}, "messages[0].content: expected a text; only an assistant that calls tools"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content: expected a text or a list"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        "messages[0].content[0]: expected a part of type text, found image",
    ),
    (conversation("a"), "messages: nothing of it is an answer to learn"),
    (conversation("a", "b", tools="[{]"), "tools: expected a list of tools, or its JSON text"),
    ({"prompt": "a", "completion": [{"role": "user", "content": "a"}]}, "completion: expected a text, as prompt is"),
    ({"prompt": "", "completion": ""}, "prompt: prompt and completion are both empty"),
    ({"prompt": "a"}, "completion: nothing of it is an answer to learn"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
        "messages[0].tool_calls[0].function.arguments: expected the text of a JSON object",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("record", "says"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_a_bad_record_is_named_with_its_place(source: Callable[..., ChatSource], record: Any, says: str) -> None:
    with pytest.raises(CorpusError) as caught:
        source([MANY[0], record]).row(0)
    assert str(caught.value).startswith("chat.jsonl:2: ")
    assert says in str(caught.value)
    assert "set data.on_bad=skip to leave such records out" in str(caught.value)
    rows = source([MANY[0], record, MANY[1]], on_bad="skip")
    assert answers(rows) == answers(source(MANY[:2]))
    assert rows.reading.reasons[0].startswith("chat.jsonl:2: ")


def test_a_template_that_marks_nothing(source: Callable[..., ChatSource], tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{% for m in messages %}{{ m.content }}{% generation %}{% endgeneration %}{% endfor %}")
    with pytest.raises(CorpusError, match=r"has \{% generation %\}, and marks nothing of this conversation"):
        source(MANY[:2], template_file=str(file)).row(0)


def test_a_template_that_refuses_the_messages(source: Callable[..., ChatSource]) -> None:
    record = conversation("a", "b")
    record["messages"].insert(0, {"role": "system", "content": "c"})
    with pytest.raises(CorpusError, match="doesn't take them: Only user and assistant speak here, found system"):
        source([record], template="instruct").row(0)


def test_templates_that_are_missing_or_no_jinja(source: Callable[..., ChatSource], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="comes without a chat template.*set data.template_file to a Jinja file"):
        source(MANY[:1], template=None).row(0)
    with pytest.raises(UsageError, match=r"nowhere\.jinja"):
        source(MANY[:1], template_file=str(tmp_path / "nowhere.jinja")).row(0)
    (tmp_path / "torn.jinja").write_text("{% for m in messages %}")
    with pytest.raises(UsageError, match=r"the chat template can't be read: .*, line 1") as error:
        source(MANY[:1], template_file=str(tmp_path / "torn.jinja")).row(0)
    assert f"in {tmp_path}/torn.jinja" in error.value.__notes__
    # Two texts need none.
    assert source([{"prompt": "a", "completion": "b"}], template=None).num_rows == 1


def test_template_and_stop_token_travel_with_the_tokenizer(source: Callable[..., ChatSource], tmp_path: Path) -> None:
    """The folder's end token is </s>, and the template ends answers with another."""
    file = tmp_path / "other.jinja"
    file.write_text(template_source("llama3"))
    rows = source(MANY[:1], template="instruct", template_file=str(file))
    tokenizer = tokenizer_from_bytes(rows.tokenizer.to_bytes())
    assert tokenizer.folder_files()["chat_template.jinja"].decode() == file.read_text()
    names = {tokenizer.special_names[token] for token in tokenizer.stop_ids}
    assert names == {"</s>", "<|eot_id|>"}
    assert json.loads(tokenizer.folder_files()["generation_config.json"])["eos_token_id"] == list(tokenizer.stop_ids)
    folder = tmp_path / "exported"
    folder.mkdir()
    for name, content in tokenizer.folder_files().items():
        (folder / name).write_bytes(content)
    assert load_tokenizer(folder).stop_ids == tokenizer.stop_ids


def test_the_digest_knows_template_and_records(source: Callable[..., ChatSource]) -> None:
    digest = source(MANY[:4]).digest
    assert source(MANY[:4]).digest == digest
    assert source(MANY[:5]).digest != digest
    assert source(MANY[:4], marks=False).digest != digest
    assert source(MANY[:4], answers="last").digest != digest


def test_records_of_text_become_conversations(tmp_path: Path) -> None:
    text = TextSource.Config(corpus=JsonLines.Config(files=("a.jsonl",), root="r"), sequence_length=64, seed=3)
    text.set(tokenizer_file="somewhere")
    made = chat_rows(text)
    assert (made.records.files, made.records.root) == (("a.jsonl",), "r")
    assert (made.sequence_length, made.seed, made.tokenizer_file) == (64, 3, "somewhere")
    with pytest.raises(UsageError, match=r"read from records, and the data are TextSource; .*--data chat.jsonl"):
        chat_rows(TextSource.Config(corpus=TextFiles.Config(files=("a.txt",))))
