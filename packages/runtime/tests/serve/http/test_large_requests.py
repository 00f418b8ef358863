"""Bodies of megabytes are read in another process: same requests, same errors, ids as arrays; and its end is no end."""

import json

import numpy as np
import pytest
from kanawa_runtime.serve.http.config import ServerConfig
from kanawa_runtime.serve.http.errors import ApiError
from kanawa_runtime.serve.http.large_requests import LARGE, read_fields
from kanawa_runtime.serve.http.protocol import completion_request, detokenize_request

from .running_server import BYTES, running_server
from .scripted_engine import ScriptedEngine

JSON = {"Content-Type": "application/json"}
BLANKS = b" " * LARGE


@pytest.fixture(scope="module")
def wide():
    """A server of long sequences, and what its engine was asked."""
    engine, asked = ScriptedEngine(max_length=400_000), []
    submit = engine.submit
    engine.submit = lambda request, on_output: (asked.append(request), submit(request, on_output))
    with running_server(engine, max_body_bytes=2**23) as running:
        running.asked = asked
        yield running


def send(server, path, body, *, more=b""):
    return server.http.post(path, content=json.dumps(body).encode() + more, headers=JSON)


def test_ids_become_arrays_and_stay_so():
    limits, config = ScriptedEngine(max_length=5000).limits, ServerConfig()
    body = completion_request(limits, config)
    for prompt, shapes in (([7] * 3000, [(3000,)]), ([[7, 8], [9]], [(2,), (1,)]), ("text", []), (["a", [1]], [(1,)])):
        fields = read_fields(body, json.dumps({"prompt": prompt, "user": ["x"], "max_tokens": 3}).encode())
        assert set(fields) == {"prompt", "max_tokens"}
        held = [one for one in body.model_validate(fields).prompts if not isinstance(one, str)]
        assert [one.shape for one in held] == shapes
        assert all(one.dtype == np.int32 for one in held)
    fields = read_fields(body, json.dumps({"prompt": [1] * 6000 + [5], "truncate_prompt_tokens": 2}).encode())
    assert fields["prompt"].shape == (5000,) and fields["prompt"][-1] == 5


@pytest.mark.parametrize("ids", [[1, 320], [1, -1]])
def test_an_array_is_checked_as_a_list_is(ids):
    body = detokenize_request(ScriptedEngine().limits)
    messages = []
    for value in (ids, np.array(ids, np.int32)):
        with pytest.raises(ValueError) as error:
            body.model_validate({"tokens": value})
        messages.append(error.value.errors()[0]["ctx"])
    assert messages[0] == messages[1] and messages[0]["field"] == 1


def test_values_of_free_fields_are_bounded():
    body = completion_request(ScriptedEngine().limits, ServerConfig())
    with pytest.raises(ApiError, match="more than 100,000 values besides token ids"):
        read_fields(body, json.dumps({"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {
            "name": "a", "schema": {"enum": ["a"] * 100_001}}}}).encode())  # fmt: skip


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"prompt": [7] * 300_000 + [320]}, 400, "prompt[300000]"),
        ({"prompt": [7] * 500_000}, 400, "prompt"),
        ({"prompt": "a", "max_tokens": "b"}, 400, "max_tokens"),
        ({"prompt": "a", "model": "other"}, 404, "model"),
        ([1], 400, None),
    ],
)
def test_errors_are_those_of_small_bodies(wide, body, status, param):
    answer = send(wide, "/v1/completions", body, more=BLANKS)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    if len(str(body)) < LARGE:
        assert send(wide, "/v1/completions", body).json() == answer.json()


def test_nothing_large_is_read_or_tokenized_in_the_servers_process(wide, monkeypatch):
    here = []
    monkeypatch.setattr("kanawa_runtime.serve.http.service.body_json", lambda content: here.append(len(content)))
    monkeypatch.setattr(type(BYTES), "encode", lambda self, text: here.append(text))
    prompt = [97 + i % 20 for i in range(300_000)]
    answer = send(wide, "/v1/completions", {"prompt": prompt, "max_tokens": 3})
    assert answer.json()["choices"][0]["text"] == "abc"
    assert wide.asked[-1].prompt_ids == tuple(prompt)
    answer = send(wide, "/v1/completions", {"prompt": "ab" * 150_000, "max_tokens": 2})
    assert answer.json()["choices"][0]["text"] == "ab"
    assert here == []


def test_a_half_million_tokens_there_and_back(wide):
    text = "a\ud800bc€" * 60_000
    answer = send(wide, "/tokenize", {"prompt": text, "return_token_strs": True}).json()
    texts = wide.server.service.texts
    assert answer == json.loads(texts.tokenized(text, prefix=True, with_texts=True))
    ids = answer["tokens"][1:500_001]
    assert send(wide, "/detokenize", {"tokens": ids}).content == texts.detokenized(ids)


def test_a_process_that_ends_is_replaced(wide):
    large = wide.server.service.large
    send(wide, "/v1/completions", {"prompt": "a"}, more=BLANKS)
    for process in large._processes._idle:
        process.kill()
        process.wait()
    refused = send(wide, "/v1/completions", {"prompt": "a"}, more=BLANKS)
    assert (refused.status_code, "send less at once" in refused.text) == (400, True)
    assert send(wide, "/v1/completions", {"prompt": "a"}, more=BLANKS).status_code == 200
