"""The official `openai` client drives every endpoint that it knows."""

import json

import openai
import pytest

from .running_server import model_of, running_server
from .scripted_engine import ScriptedEngine

MESSAGES = [{"role": "user", "content": "hi "}]
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["}"]}}, "required": ["city"]}
CLOSED = {**PARAMETERS, "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CLOSED}}


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none is asked for", max_retries=0) as made:
        yield made


def test_models(client):
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id == "scripted"


def test_a_name_with_a_slash_as_the_hub_has_them():
    model = model_of(ScriptedEngine())
    model.name = "org/scripted"
    with running_server(model=model) as running:
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0) as client:
            assert client.models.retrieve("org/scripted").id == "org/scripted"
            assert client.completions.create(model="org/scripted", prompt="ab", max_tokens=2).choices[0].text == "ab"
            with pytest.raises(openai.NotFoundError, match="there is no 'org/other' here"):
                client.models.retrieve("org/other")


def test_what_is_not_offered_is_not_found(client):
    with pytest.raises(openai.NotFoundError, match="there is no '/v1/embeddings' here") as caught:
        client.embeddings.create(model="scripted", input="a")
    assert caught.value.code == "unknown_path"


def test_fields_that_change_nothing_here(client):
    stream = client.chat.completions.create(
        model="scripted", messages=MESSAGES, stream=True, stream_options={"include_obfuscation": False},
        prediction={"type": "content", "content": "hi"}, max_completion_tokens=2, store=False, metadata={"a": "b"},
        extra_body={"prompt_cache_retention": "24h", "length_penalty": 1.0},
    )  # fmt: skip
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "hi"


def test_completions(client):
    answer = client.completions.create(
        model="scripted", prompt=["ab", "c"], max_tokens=4, n=2, logprobs=2, echo=True, seed=1, stop=["zz"], user="me"
    )
    assert [choice.text for choice in answer.choices] == ["ababab", "ababab", "ccccc", "ccccc"]
    assert answer.choices[0].logprobs.tokens[-4:] == list("abab")
    assert answer.usage.completion_tokens == 16


def test_streamed_completions(client):
    stream = client.completions.create(
        model="scripted", prompt="ab", max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    *pieces, last = list(stream)
    assert "".join(piece.choices[0].text for piece in pieces) == "abab"
    assert (last.choices, last.usage.total_tokens) == ([], 7)


def test_chats(client):
    answer = client.chat.completions.create(
        model="scripted", messages=MESSAGES, max_completion_tokens=4, logprobs=True, top_logprobs=3, temperature=0.5
    )
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("hi \nhi"[:4], "length")
    assert [len(token.top_logprobs) for token in choice.logprobs.content] == [3] * 4


def test_streamed_chats(client):
    # The client takes an answer that was cut off for an error.
    with client.chat.completions.stream(model="scripted", messages=MESSAGES, stop=["\nhi \n"]) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        whole = stream.get_final_completion()
    assert "".join(deltas) == whole.choices[0].message.content == "hi "


def test_tools(client):
    answer = client.chat.completions.create(
        model="scripted", messages=MESSAGES, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "}"})
    assert answer.choices[0].finish_reason == "tool_calls"
    # What came back is sent again, with the tool's answer.
    told = [*MESSAGES, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sun"}]
    again = client.chat.completions.create(model="scripted", messages=told, max_completion_tokens=2)
    assert again.choices[0].message.content == "hi"


def test_formats(client):
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": CLOSED, "strict": True}}
    answer = client.chat.completions.create(model="scripted", messages=MESSAGES, response_format=form)
    assert json.loads(answer.choices[0].message.content)["city"] == "}"


def test_further_fields_of_vllm(client):
    extra = {"structured_outputs": {"choice": ["}}"]}, "ignore_eos": False, "min_p": 0.1}
    answer = client.completions.create(model="scripted", prompt="a", extra_body=extra)
    assert answer.choices[0].text == "}}"


def test_errors_are_the_clients_own(client, server):
    with pytest.raises(
        openai.BadRequestError, match="temperature: Input should be less than or equal to 100, got 9000"
    ) as caught:
        client.completions.create(model="scripted", prompt="a", temperature=9000)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match="there is no 'gpt-4' here"):
        client.completions.create(model="gpt-4", prompt="a")
    with pytest.raises(openai.UnprocessableEntityError, match="regex"):
        client.completions.create(model="scripted", prompt="a", extra_body={"structured_outputs": {"regex": "(("}})


def test_a_full_queue_is_a_limit_of_rate():
    """Which the client tries again by itself, after as long as Retry-After says."""
    with running_server(model=model_of(ScriptedEngine(places=1, max_queued=1, step_seconds=0.05))) as running:
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0) as client:
            with client.completions.create(model="scripted", prompt="a", max_tokens=200, stream=True) as before:
                next(iter(before))
                with pytest.raises(openai.RateLimitError) as caught:
                    # The first may wait for the place that is taken, the second may not.
                    client.completions.create(model="scripted", prompt=["b", "c"])
            assert caught.value.response.headers["retry-after"] == "2"


def test_keys_are_the_clients():
    from kanawa_runtime.serve.http.access import Keys

    with running_server(keys=Keys(["secret"])) as running:
        wrong = openai.OpenAI(base_url=f"{running.url}/v1", api_key="guess", max_retries=0)
        right = openai.OpenAI(base_url=f"{running.url}/v1", api_key="secret")
        with wrong, right:
            with pytest.raises(openai.AuthenticationError, match="the key is missing or wrong"):
                wrong.models.list()
            assert right.models.list().data
