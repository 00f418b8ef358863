"""What of a conversation is learned: the tokens and masks of `transformers`, by marks and by prefixes."""

from collections.abc import Callable
from typing import Any

import pytest
from kanawa_runtime.data.chats.source import ChatSource
from kanawa_runtime.data.records.source import RecordError

from .conftest import MADE, conversation

CASES = [
    pytest.param(kind, case, id=f"{kind}-{case['template']}-{case['conversation']}")
    for kind, cases in MADE["cases"].items()
    for case in cases
]
#: Its templates leave out earlier thoughts once a question follows.
UNSTABLE = ("three", "thoughts", "open")


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_tokens_and_marks_are_those_of_transformers(
    kept_source: Callable[..., ChatSource], kind: str, case: dict[str, Any]
) -> None:
    example = kept_source(template=case["template"], kind=kind).example_of(MADE["conversations"][case["conversation"]])
    assert example.ids.tolist() == case["ids"]
    assert example.weights.tolist() == case["mask"]


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_without_marks_answers_are_what_they_add(
    kept_source: Callable[..., ChatSource], kind: str, case: dict[str, Any]
) -> None:
    rows = kept_source(template=case["template"], kind=kind, marks=False)
    assert not rows.template.marks_answers
    fields = MADE["conversations"][case["conversation"]]
    if case["template"] == "thinking" and case["conversation"] in UNSTABLE:
        with pytest.raises(RecordError, match=r"writes what comes before differently .* \{% generation %\}"):
            rows.example_of(fields)
        return
    example = rows.example_of(fields)
    assert example.ids.tolist() == case["ids"]
    assert example.weights.tolist() == case["mask"]


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("template", ["chatml", "thinking", "instruct"])
def test_only_the_last_answer(source: Callable[..., ChatSource], template: str, marks: bool) -> None:
    rows = source(template=template, marks=marks, answers="last")
    record = conversation("a", "first", "c", "second", "a question more")
    ids, weights = rows.example_of(record)
    learned = rows.tokenizer.decode(ids[weights > 0])
    assert learned.split("</think>")[-1].strip() == "second"
    assert "first" in rows.tokenizer.decode(ids[weights == 0])
    assert "question more" not in rows.tokenizer.decode(ids)
    assert ids[weights > 0][-1] in rows.tokenizer.stop_ids


@pytest.mark.parametrize("marks", [True, False])
def test_answers_in_a_prompt_are_not_learned(source: Callable[..., ChatSource], marks: bool) -> None:
    turns = conversation("a", "first", "c", "second")["messages"]
    ids, weights = source(marks=marks).example_of({"prompt": turns[:3], "completion": turns[3:]})
    assert ids.tolist() == source().example_of({"messages": turns}).ids.tolist()
    tokenizer = source().tokenizer
    assert tokenizer.decode(ids[weights > 0]) == "second"


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("template", ["chatml", "instruct", "llama3"])
def test_messages_of_weight_0_are_not_learned(source: Callable[..., ChatSource], template: str, marks: bool) -> None:
    rows = source(template=template, marks=marks)
    record = conversation("a", "first", "c", "second", "d", "third")
    whole = rows.example_of(record)
    for left_out in ((1,), (3,), (5,), (1, 5)):
        weighed = [{**m, "weight": int(i not in left_out)} if i % 2 else m for i, m in enumerate(record["messages"])]
        ids, weights = rows.example_of({"messages": weighed})
        assert ids.tolist() == whole.ids.tolist()
        learned = rows.tokenizer.decode(ids[weights > 0]).split()
        kept = [word for i, word in ((1, "first"), (3, "second"), (5, "third")) if i not in left_out]
        assert "".join(learned) == "".join(kept)


def test_records_of_from_and_value_are_conversations(source: Callable[..., ChatSource]) -> None:
    said = [("human", "a"), ("gpt", "b"), ("human", "c"), ("gpt", "d")]
    shared = {"conversations": [{"from": who, "value": text} for who, text in said], "system": "be kind"}
    roles = {"human": "user", "gpt": "assistant"}
    plain = [{"role": "system", "content": "be kind"}, *({"role": roles[who], "content": text} for who, text in said)]
    made, wanted = (source().example_of(fields) for fields in (shared, {"messages": plain}))
    assert (made.ids.tolist(), made.weights.tolist()) == (wanted.ids.tolist(), wanted.weights.tolist())


def test_two_texts_are_joined_and_end(source: Callable[..., ChatSource]) -> None:
    rows = source()
    ids, weights = rows.example_of({"prompt": "The quick ", "completion": "brown fox"})
    tokenizer = rows.tokenizer
    whole = tokenizer.encode("The quick brown fox").tolist()
    assert ids.tolist() == [*tokenizer.prefix_ids, *whole, tokenizer.eos_id]
    # The token that holds the space belongs to the completion with what follows it.
    assert tokenizer.decode(ids[weights > 0]).strip() == "brown fox"
    assert weights[-1] == 1.0


def test_what_is_marked_inside_a_macro_or_a_set_block_is_found(source: Callable[..., ChatSource]) -> None:
    """Its text comes out later than where it is written."""
    from kanawa_runtime.data.chats.template import ChatTemplate, turns

    template = ChatTemplate(
        "{% macro say(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}"
        "{% for m in messages %}"
        "[{% if m.role == 'assistant' %}{{ say(m) }}{% else %}{{ m.content }}{% endif %}]"
        "{% endfor %}"
    )
    marked = template.render_marked([turns(conversation("a", "bc", "d", "efg")["messages"])], "2026-01-01")[0]
    assert marked.text == "[a][bc][d][efg]"
    assert [marked.text[begin:end] for begin, end in marked.spans] == ["bc", "efg"]


def test_a_template_that_changes_what_it_marks_is_refused(source: Callable[..., ChatSource]) -> None:
    from kanawa_runtime.data.chats.template import ChatTemplate, turns
    from kanawa_runtime.data.chats.template_process import TemplateError

    template = ChatTemplate(
        "{% for m in messages %}{% set x %}{% generation %}  {{ m.content }} {% endgeneration %}{% endset %}"
        "{{ x | trim }}{% endfor %}"
    )
    with pytest.raises(TemplateError, match="is changed afterwards"):
        template.render_marked([turns(conversation("a", "b")["messages"])], "2026-01-01")


def test_a_template_has_the_day_of_the_config(source: Callable[..., ChatSource]) -> None:
    from kanawa_runtime.data.chats.template import ChatTemplate, turns

    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}")
    assert template.render_marked([turns([])], "2024-07-26")[0].text == "26 Jul 2024"
