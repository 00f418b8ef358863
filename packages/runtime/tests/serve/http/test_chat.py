"""`/v1/chat/completions`: templates, tools, formats and deltas."""

import contextlib
import json
import time
from pathlib import Path

import pytest
from kanawa.errors import UsageError
from kanawa_runtime.data.chats.template import ChatTemplate, turns
from kanawa_runtime.data.chats.template_process import TemplateError, TemplateProcesses

from .running_server import model_of, running_server
from .scripted_engine import ScriptedEngine

#: As Qwen and Hermes write conversations, in short.
CHATML = r"""
{%- for m in messages %}
{{- "<|" ~ m.role ~ "|>" ~ m.content }}
{%- for c in m.tool_calls or [] %}{{ "\n<tool_call>" ~ c.function.arguments.city ~ "</tool_call>" }}{% endfor %}
{{- "\n" }}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{ "<|assistant|>" }}{% endif %}"""
USER = {"role": "user", "content": "hi "}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["}"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "w", "description": "weather", "parameters": CITY}}


@pytest.fixture(scope="module")
def marked():
    engine = ScriptedEngine(max_length=2048)
    with running_server(model=model_of(engine, template=ChatTemplate(CHATML))) as running:
        yield running


def chat(server, *messages, **body):
    answer = server.post("/v1/chat/completions", {"messages": list(messages) or [USER], **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(server, status, **body):
    return server.refused(status, "/v1/chat/completions", **{"messages": [USER], **body})


def streamed(server, **body):
    """Returns the deltas, finish reason and usage of a stream."""
    asked = {"messages": [USER], **body, "stream": True, "stream_options": {"include_usage": True}}
    deltas, reason, usage = [], None, None
    with server.http.stream("POST", "/v1/chat/completions", json=asked) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert event["object"] == "chat.completion.chunk"
                usage = event["usage"] or usage
                for choice in event["choices"]:
                    deltas.append(choice["delta"])
                    reason = choice["finish_reason"] or reason
    return deltas, reason, usage


def test_the_plain_template_goes_on_with_the_messages(server):
    answer = chat(server, USER, max_tokens=6)
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hi \nhi", "refusal": None}
    assert (answer["object"], choice["finish_reason"]) == ("chat.completion", "length")
    # The token that begins a text, and five characters.
    assert answer["usage"]["prompt_tokens"] == 5


def test_a_models_own_template(marked):
    told = chat(marked, {"role": "developer", "content": "S"}, USER, max_tokens=40)["choices"][0]["message"]["content"]
    assert told == "<|system|>S\n<|user|>hi \n<|assistant|><|s"


def test_messages_of_parts_and_calls(marked):
    call = {"id": "c", "type": "function", "function": {"name": "w", "arguments": '{"city": "Rome"}'}}
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    spoken = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": "sunny"}
    told = chat(marked, parts, spoken, result, max_tokens=80)["choices"][0]["message"]["content"]
    assert told.startswith("<|user|>ab\n<|assistant|>\n<tool_call>Rome</tool_call>\n<|tool|>sunny\n<|assistant|>")


def test_room_is_what_fits_unless_said(server):
    answer = chat(server, USER)
    assert answer["usage"]["total_tokens"] == server.engine.limits.max_length
    assert answer["choices"][0]["finish_reason"] == "length"


def test_log_probabilities(server):
    (choice,) = chat(server, USER, max_tokens=2, logprobs=True, top_logprobs=2)["choices"]
    first = choice["logprobs"]["content"][0]
    assert (first["token"], first["logprob"], first["bytes"]) == ("h", -0.5, [104])
    assert [entry["token"] for entry in first["top_logprobs"]] == ["h", "\x01"]
    assert chat(server, USER, max_tokens=1)["choices"][0]["logprobs"] is None


def test_a_stream_adds_up_to_the_whole(server):
    whole = chat(server, USER, max_tokens=9)
    deltas, reason, usage = streamed(server, max_tokens=9)
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(d.get("content", "") for d in deltas) == whole["choices"][0]["message"]["content"]
    assert (reason, usage) == ("length", whole["usage"])


def test_a_named_tool_is_called_with_what_its_schema_allows(server):
    choice = {"type": "function", "function": {"name": "w"}}
    answer = chat(server, USER, tools=[WEATHER], tool_choice=choice, max_tokens=60)["choices"][0]
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "w"
    assert json.loads(call["function"]["arguments"]) == {"city": "}"}
    assert (answer["finish_reason"], answer["message"]["content"]) == ("tool_calls", None)
    deltas, reason, _ = streamed(server, tools=[WEATHER], tool_choice=choice, max_tokens=60)
    pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert json.loads("".join(piece["function"]["arguments"] for piece in pieces)) == {"city": "}"}
    assert (pieces[0]["function"]["name"], reason) == ("w", "tool_calls")
    assert pieces[0]["id"].startswith("call_")


def test_a_required_call_of_any_tool(server):
    body = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200}
    answer = chat(server, USER, **body)["choices"][0]
    (call,) = answer["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("w", {"city": "}"})
    deltas, reason, _ = streamed(server, **body)
    (streamed_call,) = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert (streamed_call["function"], reason) == (call["function"], "tool_calls")


def test_a_model_with_marks_of_its_own_writes_calls_between_them(marked):
    body = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200}
    answer = chat(marked, USER, **body)["choices"][0]
    assert "tool_calls" in answer["message"], answer
    (call,) = answer["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("w", {"city": "}"})
    assert answer["message"]["content"] is None


def test_formats(server):
    schema = {"name": "s", "schema": CITY, "strict": True}
    form = {"type": "json_schema", "json_schema": schema}
    assert json.loads(chat(server, USER, response_format=form)["choices"][0]["message"]["content"]) == {"city": "}"}


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"messages": []}, "messages", "List should have at least 1 item after validation, not 0"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role", "'tool' or 'function', got 'wizard'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].image_url",
            "it is a picture, and this model reads texts alone",
        ),
        ({"top_logprobs": 2}, "top_logprobs", "it needs logprobs"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools, and the request has none"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "two functions are called 'w'"),
        (
            {"tools": [WEATHER], "tool_choice": "wether"},
            "tool_choice",
            "Input should be 'none', 'auto' or 'required', got 'wether'",
        ),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "v"}}},
            "tool_choice.function.name",
            "there is no tool 'v'",
        ),
        ({"functions": [{}]}, "functions", "replaced by tools"),
        ({"max_completion_tokens": 600}, "max_completion_tokens", "ask for at most 507"),
    ],
)
def test_what_cant_be(server, body, param, says):
    error = refused(server, 400, **body)
    assert error["param"] == param
    assert says in error["message"]


def test_a_template_may_mark_what_the_model_wrote():
    template = ChatTemplate(
        "{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}{% set end = '!' %}"
        "{{ message.content }}{{ end }}{% endgeneration %}{% else %}"
        "{{ message.content }}{{ end }}{% endif %}|{% endfor %}"
    )
    messages = [{"role": role, "content": role[0]} for role in ("user", "assistant", "user")]
    # What is set between the marks is unknown after them.
    assert template.render(turns(messages)) == "u|a!|u|"
    with pytest.raises(UsageError, match="generation"):
        ChatTemplate("{% generation %}never ends")


def test_messages_that_a_template_refuses():
    template = ChatTemplate("{% if messages[0].role != 'user' %}{{ raise_exception('users first') }}{% endif %}x")
    with running_server(model=model_of(ScriptedEngine(), template=template)) as running:
        error = refused(running, 422, messages=[{"role": "system", "content": "a"}])
        assert error["message"] == "messages: the model's chat template doesn't take them: users first"
        assert chat(running, USER, max_tokens=1)["choices"][0]["message"]["content"] == "x"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.__class__ }}{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{% set x = messages.append(1) %}{{ x }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ open('/etc/passwd') }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_template_reaches_nothing(source):
    """It comes with a stranger's model."""
    text = None
    with contextlib.suppress(TemplateError):
        text = ChatTemplate(source).render(turns([USER]))
    assert text in (None, "")


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ 'a' * 10**11 }}",
        "{% for i in range(99999) %}{{ 'a' * 10**6 }}{% endfor %}",
    ],
)
def test_a_template_that_never_ends_is_ended_and_the_next_one_is_rendered(source):
    processes = TemplateProcesses()
    began = time.monotonic()
    with pytest.raises(TemplateError, match="and was ended|MemoryError|more than 67,108,864 characters"):
        processes.render(source, {}, seconds=5.0)
    assert time.monotonic() - began < 40
    assert processes.render("{{ a }}", {"a": "\ud800"}, seconds=40.0) == "\ud800"
    processes.close()


def test_a_template_sees_no_key_of_the_server(monkeypatch):
    monkeypatch.setenv("KANAWA_API_KEYS", "a-secret")
    processes = TemplateProcesses()
    processes.render("", {}, seconds=40.0)
    (process,) = processes._processes._idle
    environment = Path(f"/proc/{process.pid}/environ")
    assert not environment.exists() or b"a-secret" not in environment.read_bytes()
    processes.close()
