"""`/v1/messages` by the official `anthropic` client: blocks, tools, formats, events, counts and errors."""

import anthropic
import pytest
from kanawa_runtime.data.chats.template import ChatTemplate
from kanawa_runtime.serve.http.access import Keys

from .running_server import model_of, running_server, wait_for
from .scripted_engine import ScriptedEngine
from .test_chat import CHATML
from .test_chat import CITY as CLOSED
from .test_pressure import sent

USER = {"role": "user", "content": "hi "}
WEATHER = {"name": "w", "description": "weather", "input_schema": CLOSED}


def client_of(server, key="none is asked for"):
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def client(server):
    with client_of(server) as made:
        yield made


def asked(**body):
    return {"model": "scripted", "max_tokens": 6, "messages": [USER], **body}


def test_a_text(client):
    answer = client.messages.create(**asked(metadata={"user_id": "me"}, extra_body={"temperature": 0.5}))
    (block,) = answer.content
    assert (answer.role, block.text, answer.stop_reason) == ("assistant", "hi \nhi", "max_tokens")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (5, 6)
    stopped = client.messages.create(**asked(stop_sequences=["\n"]))
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == ("hi ", "stop_sequence", "\n")


def test_blocks_are_the_templates_messages():
    engine = ScriptedEngine(max_length=2048)
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "c"},
                {"type": "tool_use", "id": "t", "name": "w", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "so?"},
            ],
        },
    ]
    begin = (
        "<|system|>S\n<|user|>a\n<|assistant|>c\n<tool_call>Rome</tool_call>\n<|tool|>sunny\n<|user|>so?\n<|assistant|>"
    )
    with running_server(model=model_of(engine, template=ChatTemplate(CHATML))) as running:
        with client_of(running) as client:
            system = [{"type": "text", "text": "S"}]
            answer = client.messages.create(**asked(system=system, messages=messages, max_tokens=200))
            count = client.messages.count_tokens(model="scripted", system=system, messages=messages)
    assert answer.content[0].text.startswith(begin)
    assert count.input_tokens == answer.usage.input_tokens == len(begin)


@pytest.mark.parametrize("choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "w"}])
def test_a_call_and_its_result(client, choice):
    body = asked(tools=[WEATHER], tool_choice=choice, max_tokens=200)
    answer = client.messages.create(**body)
    (call,) = answer.content
    assert (call.name, call.input, answer.stop_reason) == ("w", {"city": "}"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sun"}
    told = [USER, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(**asked(messages=told, tools=[WEATHER], max_tokens=2)).content[0].text == "hi"
    with client.messages.stream(**body) as stream:
        assert stream.get_final_message().content[0].input == {"city": "}"}


def test_a_stream_adds_up_to_the_whole(client):
    whole = client.messages.create(**asked())
    with client.messages.stream(**asked()) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    kinds = [event.type for event in client.messages.create(stream=True, **asked())]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_format(client):
    form = {"format": {"type": "json_schema", "schema": CLOSED}}
    answer = client.messages.create(**asked(output_config=form, max_tokens=100))
    assert answer.content[0].text == '{"city":"}"}'


def test_what_cant_be(client):
    image = {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://a/b"}}]}
    sound = {"role": "user", "content": [{"type": "document", "source": {}}]}
    stray = {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "c"}]}
    for body, says in [
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [sound]}, "messages[0].content[0]: Input should be a block of one of the types text, tool_use"),
        ({"messages": [image]}, "messages[0].content[0].source: it is a picture, and this model reads texts alone"),
        ({"messages": [stray, USER]}, "messages[0].content[0]: a tool_result belongs to a message of the user"),
        ({"messages": [USER, {"role": "assistant", "content": "x"}]}, "messages[1].role: the last message has to be"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role: Input should be 'user' or 'assistant'"),
        ({"max_tokens": 600}, "max_tokens: the prompt has 5 tokens and 600 new ones are asked for"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name: the type tool needs the name of one"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "v"}}, "there is no tool 'v'"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences: "),
        ({"extra_body": {"max_tokns": 1}}, "max_tokns: there is no such field; did you mean 'max_tokens'?"),
    ]:
        with pytest.raises(anthropic.BadRequestError) as caught:
            client.messages.create(**asked(**body))
        error = caught.value.body
        assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
        assert says in error["error"]["message"]
    with pytest.raises(anthropic.NotFoundError, match="there is no 'claude' here"):
        client.messages.create(**asked(model="claude"))


def test_keys_have_the_clients_own_errors():
    with running_server(keys=Keys(["secret"])) as running:
        with client_of(running, "guess") as wrong, client_of(running, "secret") as right:
            with pytest.raises(anthropic.AuthenticationError, match="the key is missing or wrong"):
                wrong.messages.create(**asked())
            assert right.messages.create(**asked()).content


def test_a_full_queue_is_a_limit_of_rate():
    with running_server(ScriptedEngine(step_seconds=0.1, places=1, max_queued=1)) as running:
        waiting = []
        for places in (1, 2):
            waiting.append(sent(running, {"prompt": "a", "max_tokens": 400}))
            wait_for(lambda places=places: running.engine.places_used == places)
        with client_of(running) as client, pytest.raises(anthropic.RateLimitError) as caught:
            client.messages.create(**asked())
        assert caught.value.body["error"]["type"] == "rate_limit_error"
        for made in waiting:
            made.close()
