"""`/v1/responses` by the official `openai` client: items, tools, formats, events and errors."""

import json

import openai
import pydantic
import pytest
from kanawa_runtime.data.chats.template import ChatTemplate

from .running_server import model_of, running_server
from .scripted_engine import ScriptedEngine
from .test_chat import CHATML
from .test_chat import CITY as CLOSED

WEATHER = {"type": "function", "name": "w", "description": "weather", "parameters": CLOSED, "strict": True}


@pytest.fixture(scope="module")
def marked():
    engine = ScriptedEngine(max_length=2048)
    with running_server(model=model_of(engine, template=ChatTemplate(CHATML))) as running:
        yield running


def client_of(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none is asked for", max_retries=0)


@pytest.fixture(scope="module")
def client(server):
    with client_of(server) as made:
        yield made


def test_a_text(client):
    answer = client.responses.create(model="scripted", input="hi ", max_output_tokens=6, temperature=0.5, top_p=0.9)
    assert (answer.output_text, answer.status) == ("hi \nhi", "incomplete")
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (5, 6, 11)
    assert (answer.temperature, answer.top_p, answer.tools, answer.store) == (0.5, 0.9, [], False)
    (item,) = answer.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "incomplete")


def test_instructions_and_items_are_the_templates_messages(marked):
    call = {"type": "function_call", "call_id": "c", "name": "w", "arguments": '{"city": "Rome"}'}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        call,
        {"type": "function_call_output", "call_id": "c", "output": "sunny"},
    ]
    begin = "<|system|>S\n<|user|>ab\n<|assistant|>c\n<tool_call>Rome</tool_call>\n<|tool|>sunny\n<|assistant|>"
    with client_of(marked) as client:
        answer = client.responses.create(model="scripted", instructions="S", input=items, max_output_tokens=len(begin))
    assert answer.output_text == begin


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "w"}])
def test_a_call_and_its_result(client, choice):
    asked = {"model": "scripted", "tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False}
    answer = client.responses.create(input="hi ", **asked)
    (call,) = answer.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "w", {"city": "}"})
    assert (answer.status, answer.tools[0].name) == ("completed", "w")
    # What came back is sent again, with the tool's answer.
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    again = client.responses.create(model="scripted", input=[{"role": "user", "content": "hi "}, call, result])
    assert again.output_text.startswith("hi ")
    with client.responses.stream(input="hi ", **asked) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        whole = stream.get_final_response()
    assert "".join(pieces) == whole.output[0].arguments
    assert json.loads(whole.output[0].arguments) == {"city": "}"}


def test_a_stream_adds_up_to_the_whole(client):
    asked = {"model": "scripted", "input": "hi ", "max_output_tokens": 9}
    whole = client.responses.create(**asked)
    events = list(client.responses.create(stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    assert events[-1].response.usage == whole.usage


def test_a_format(client):
    class Place(pydantic.BaseModel):
        city: str

    parsed = client.responses.parse(model="scripted", input="hi ", text_format=Place).output_parsed
    assert isinstance(parsed, Place)


def test_what_cant_be(client):
    def refused(**body):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**{"model": "scripted", "input": "a", **body})
        return caught.value.param, caught.value.message

    call = {"type": "function_call", "call_id": "c", "name": "w", "arguments": "[1]"}
    image = {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}
    for body, param, says in [
        ({"input": []}, "input", "at least 1 item"),
        ({"input": [{"type": "web_search_call"}]}, "input[0]", "one of the types message, function_call"),
        ({"input": [image]}, "input[0].content[0].image_url", "this model reads texts alone"),
        ({"input": [call]}, "input[0].arguments", "it isn't the JSON text of an object"),
        ({"input": "a" * 600}, "input", "it has 602 tokens, and prompt and answer together may have 512"),
        ({"max_output_tokens": 600}, "max_output_tokens", "ask for at most"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "Input should be 'function', got 'web_search'"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "this server stores no answers"),
        ({"temprature": 1}, None, "temprature"),
    ]:
        named = {"extra_body": body} if param is None else body
        found, message = refused(**named)
        assert found == (param or "temprature")
        assert says in message


def test_a_failure_after_the_first_token_is_an_event():
    engine = ScriptedEngine(step_seconds=0.01)
    with running_server(engine, max_seconds=60) as running, client_of(running) as client:
        stream = client.responses.create(model="scripted", input="hi ", stream=True)
        kinds = []
        for event in stream:
            kinds.append(event.type)
            if event.type == "response.output_text.delta" and "response.failed" not in kinds:
                (one,) = list(engine._running.values()) or [None]
                if one is not None:
                    engine._end(one, "error", error="a bit fell over")
        assert kinds[-1] == "response.failed"
        assert "a bit fell over" in event.response.error.message
