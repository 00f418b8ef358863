"""What a request gets that can't be served: a status, a field and a limit, in OpenAI's shape; and never a 5xx."""

import json
import math
import threading

import pytest
from kanawa_runtime.serve.http.protocol import CompletionRequest

LONG = "a" * 600


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "prompt", "prompt: it is missing, expected a text, a list of token ids, or a list of either"),
        ({"prompt": 5}, "prompt", "Input should be a text, a list of token ids, or a list of either, got 5"),
        ({"prompt": []}, "prompt", "List should have at least 1 item after validation, not 0"),
        ({"prompt": ["a"] * 65}, "prompt", "List should have at most 64 items after validation, not 65"),
        ({"prompt": [[]]}, "prompt[0]", "List should have at least 1 item, not 0"),
        ({"prompt": [320]}, "prompt[0]", "Input should be less than or equal to 319, got 320"),
        ({"prompt": [1, "a"]}, "prompt[1]", "Input should be a valid integer, got 'a'"),
        ({"prompt": [[1], 2]}, "prompt[1]", "Input should be a text or a list of token ids, got 2"),
        ({"prompt": [1] * 600}, "prompt", "it has 600 tokens, and prompt and answer together may have 512 tokens"),
        ({"prompt": ["a", [1] * 600]}, "prompt[1]", "it has 600 tokens, and prompt and answer together"),
        ({"prompt": "a", "stop_token_ids": [1] * 65}, "stop_token_ids", "List should have at most 64 items, not 65"),
        ({"prompt": "a", "priority": -1}, "priority", "this server takes none (server.allow_priority)"),
        ({"prompt": [True]}, "prompt[0]", "Input should be a valid integer, got True"),
        ({"prompt": LONG}, "prompt", "it has 601 tokens, and prompt and answer together may have 512 tokens"),
        ({"prompt": "a", "max_tokens": 511}, "max_tokens", "ask for at most 510"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens", "Input should be greater than or equal to 0, got -1"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens", "Input should be a valid integer, got 1.5"),
        ({"prompt": "a", "temperature": -0.1}, "temperature", "greater than or equal to 0, got -0.1"),
        ({"prompt": "a", "temperature": "hot"}, "temperature", "Input should be a valid number, got 'hot'"),
        ({"prompt": "a", "top_p": 0}, "top_p", "Input should be greater than 0, got 0"),
        ({"prompt": "a", "n": 17}, "n", "Input should be less than or equal to 16, got 17"),
        ({"prompt": "a", "n": True}, "n", "Input should be a valid integer, got True"),
        ({"prompt": ["a"] * 4, "n": 4}, "n", "asks for 16 answers at once, and a client may have 10"),
        ({"prompt": "a", "best_of": 3}, "best_of", "choosing the best of several isn't offered"),
        ({"prompt": "a", "suffix": "z"}, "suffix", "no model here fills in the middle"),
        ({"prompt": "a", "use_beam_search": True}, "use_beam_search", "beam search isn't offered"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "Input should be less than or equal to 20, got 21"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "'x' is no token id, expected 0 to 319"),
        ({"prompt": "a", "logit_bias": {"٣": 1}}, "logit_bias", "is no token id"),
        ({"prompt": "a", "logit_bias": {"3": 101}}, "logit_bias.3", "less than or equal to 100, got 101"),
        ({"prompt": "a", "stop": [""]}, "stop[0]", "it has 0 characters, expected 1 to 1,000"),
        ({"prompt": "a", "stop": ["x"] * 17}, "stop", "List should have at most 16 items after validation, not 17"),
        ({"prompt": "a", "min_tokens": 5, "max_tokens": 2}, "min_tokens", "5 is more than max_tokens, which is 2"),
        ({"prompt": "a", "temprature": 1}, "temprature", "there is no such field; did you mean 'temperature'?"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options", "set stream to true"),
        ({"prompt": "a", "stream": True, "stream_options": {"x": 1}}, "stream_options.x", "there is no such field"),
        ({"prompt": "a", "allowed_token_ids": []}, "allowed_token_ids", "List should have at least 1 item"),
        ({"prompt": "a", "response_format": {"type": "xml"}}, "response_format.type", "or 'json_schema', got 'xml'"),
        ({"prompt": "a", "response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "missing"),
        (
            {"prompt": "a", "structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs.choice",
            "can't be asked for at once",
        ),
        ([], None, "Input should be an object, got []"),
    ],
)  # fmt: skip
def test_a_field_that_cant_be(server, body, param, says):
    answer = server.post("/v1/completions", body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert says in error["message"]


def test_a_context_that_is_too_short_has_a_code(server):
    assert server.refused(400, prompt=LONG)["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("outputs", "param"),
    [
        ({"regex": "(("}, "structured_outputs.regex"),
        ({"json": {"type": "nothing"}}, "structured_outputs.json"),
        ({"json": "{"}, "structured_outputs.json"),
        ({"grammar": "start: undefined"}, "structured_outputs.grammar"),
    ],
)
def test_what_is_no_grammar(server, outputs, param):
    assert server.refused(422, prompt="a", structured_outputs=outputs)["param"] == param


def test_a_model_that_isnt_there(server):
    error = server.refused(404, prompt="a", model="scriptd")
    assert error["code"] == "model_not_found"
    assert "there is no 'scriptd' here; did you mean 'scripted'?" in error["message"]


@pytest.mark.parametrize(
    ("content", "status", "says"),
    [
        (b"", 400, "the body isn't JSON"),
        (b"{", 400, "the body isn't JSON"),
        (b"\xff\xfe", 400, "the body isn't JSON"),
        (b'{"prompt": NaN}', 400, "NaN is not a JSON number"),
        (b"[" * 100_000, 400, "the body isn't JSON"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", 400, "the body isn't JSON"),
        (
            b'{"prompt": "a", "temperature": 1e999}',
            400,
            "temperature: Input should be less than or equal to 100, got inf",
        ),
        (b'{"prompt": "' + b"a" * 9_000_000 + b'"}', 413, "more than 8,388,608 bytes (max_body_bytes)"),
    ],
    ids=range(8),
)
def test_bodies_that_arent_json(server, content, status, says):
    answer = server.http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]["message"]


def test_half_a_surrogate_pair_is_a_text_like_others(server):
    content = json.dumps({"prompt": "\ud800", "max_tokens": 1, "stop": ["\udfff"], "echo": True})
    answer = server.http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text


def test_a_page_of_another_site_cant_send_a_form(server):
    answer = server.http.post("/v1/completions", content="{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415
    assert answer.json()["error"]["message"] == "Content-Type is text/plain, expected application/json"


def test_paths_and_methods_that_arent_there(server):
    assert server.http.get("/v2/models").status_code == 404
    assert server.http.get("/v1/models/none").json()["error"]["code"] == "model_not_found"
    answer = server.http.get("/v1/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert "expected POST" in answer.json()["error"]["message"]


def test_numbers_in_answers_are_json(server):
    """Minus infinity, the log-probability of what is masked, has no JSON."""
    answer = server.complete(prompt="ab", max_tokens=1, logprobs=20)
    assert all(math.isfinite(x) for x in answer["choices"][0]["logprobs"]["top_logprobs"][0].values())


def test_long_bodies_are_looked_at_beside_the_loop(server):
    threads = []
    validate = CompletionRequest.model_validate.__func__

    def noted(cls, value):
        if len(value["prompt"]) > 10_000:
            threads.append(threading.current_thread().name)
        return validate(cls, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompletionRequest, "model_validate", classmethod(noted))
        error = server.refused(400, prompt=[1] * 50_000 + [-1], truncate_prompt_tokens=-1)
    assert error["param"] == "prompt[50000]"
    # Seconds of it, for the longest of bodies, are seconds in which no client gets a token.
    assert [name.rpartition("_")[0] for name in threads] == ["kanawa-http-read"]
