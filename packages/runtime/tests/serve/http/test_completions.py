"""`/v1/completions` over real sockets: what is asked for, and what comes back, whole and in events."""

import json

import pytest

from .running_server import BYTES, running_server
from .scripted_engine import ScriptedEngine


def events_of(server, **body):
    """Returns the events of a stream, the end mark checked."""
    events = []
    with server.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line:
                assert line.startswith("data: ")
                events.append(line.removeprefix("data: "))
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def test_a_text_is_gone_on_from(server):
    answer = server.complete(prompt="abc", max_tokens=5)
    (choice,) = answer["choices"]
    assert choice["text"] == "abcab"
    assert choice["finish_reason"] == "length"
    assert (answer["object"], answer["model"]) == ("text_completion", "scripted")
    # The byte tokenizer begins a text with a token of its own.
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}


def test_a_default_of_sixteen_tokens(server):
    assert server.complete(prompt="ab")["choices"][0]["text"] == "ab" * 8


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ([97, 98], ["aba"]),
        (["ab", "c"], ["aba", "ccc"]),
        ([[97], [98, 99]], ["aaa", "bcb"]),
        (["ab", [99]], ["aba", "ccc"]),
        ("", ["xxx"]),
    ],
)
def test_prompts_of_every_kind(server, prompt, texts):
    answer = server.complete(prompt=prompt, max_tokens=3)
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts)))


def test_several_choices_of_several_prompts_are_in_order(server):
    answer = server.complete(prompt=["a", "b"], n=2, max_tokens=2)
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "aa"), (1, "aa"), (2, "bb"), (3, "bb")]
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_ends_an_answer_and_the_engines_work(server, include):
    stop = {"stop": ["two ", "never"], "include_stop_str_in_output": include}
    answer = server.complete(prompt="one two ", max_tokens=400, **stop)
    (choice,) = answer["choices"]
    assert choice["text"] == ("one two " if include else "one ")
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "two ")
    assert server.ended(answer["id"] + "-0") == "abort"
    assert answer["usage"]["completion_tokens"] == 8


def test_stop_strings_count_after_min_tokens_only(server):
    answer = server.complete(prompt="abc", max_tokens=20, min_tokens=6, stop="c")
    assert answer["choices"][0]["text"] == "abcabcab"


def test_stop_tokens(server):
    choice = server.complete(prompt="abc", max_tokens=20, stop_token_ids=[ord("c")])["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ab", "stop", 99)


def test_a_stream_adds_up_to_the_whole(server):
    body = {"prompt": "naïve 🎉 ", "max_tokens": 30, "n": 2, "logprobs": 2}
    whole = server.complete(**body)
    events = events_of(server, **body, stream_options={"include_usage": True})
    *pieces, last = events
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert all(event["usage"] is None for event in pieces)
    for choice in whole["choices"]:
        own = [e["choices"][0] for e in pieces if e["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in own) == choice["text"]
        # Characters come whole: no event ends in the middle of one.
        assert all("�" not in piece["text"] for piece in own[:-1])
        for name in ("tokens", "token_logprobs", "text_offset"):
            assert sum((piece["logprobs"][name] for piece in own), []) == choice["logprobs"][name]
        assert [piece["finish_reason"] for piece in own][-1] == choice["finish_reason"]


def test_usage_all_along(server):
    events = events_of(server, prompt="ab", max_tokens=4, stream_options={"continuous_usage_stats": True})
    assert events[-1]["usage"]["completion_tokens"] == 4


def test_log_probabilities(server):
    logprobs = server.complete(prompt="ab", max_tokens=2, logprobs=2)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b"]
    assert logprobs["token_logprobs"] == [-0.5, -0.5]
    assert logprobs["top_logprobs"][0] == {"a": -0.5, "\x01": -3.0}
    assert logprobs["text_offset"] == [0, 1]
    as_ids = server.complete(prompt="ab", max_tokens=1, logprobs=1, return_tokens_as_token_ids=True)
    assert as_ids["choices"][0]["logprobs"]["tokens"] == ["token_id:97"]


def test_an_echo_is_scored(server):
    """What `lm-eval` asks for: nothing new, and the prompt's own log-probabilities."""
    answer = server.complete(prompt=[97, 98, 99], max_tokens=0, echo=True, logprobs=1)
    (choice,) = answer["choices"]
    assert choice["text"] == "abc"
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert (choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 0)
    grown = server.complete(prompt="abc", max_tokens=1, echo=True, logprobs=1)["choices"][0]
    assert grown["text"] == "abca"
    # The token that begins a text is among the tokens, and has no text.
    assert grown["logprobs"]["tokens"][-1] == "a"
    assert grown["logprobs"]["text_offset"] == [0, 0, 1, 2, 3]


def test_prompts_are_scored_on_demand(server):
    choice = server.complete(prompt=[97, 98], max_tokens=1, prompt_logprobs=1, return_token_ids=True)["choices"][0]
    assert choice["prompt_logprobs"] == [None, {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([97, 98], [97])


def test_long_prompts_are_cut_where_asked(server):
    answer = server.complete(prompt="x" * 2000 + "abc", max_tokens=3, truncate_prompt_tokens=3)
    assert answer["choices"][0]["text"] == "abc"
    fitting = server.complete(prompt="y" * 3000, max_tokens=1, truncate_prompt_tokens=-1)
    assert fitting["usage"]["prompt_tokens"] == server.engine.limits.max_length - 1


def test_sampling_reaches_the_engine():
    seen, engine = {}, ScriptedEngine()
    submit = engine.submit

    def spy(request, on_output):
        seen[request.id[-1]] = request
        submit(request, on_output)

    engine.submit = spy
    with running_server(engine, allow_priority=True, shows_cached_tokens=True) as running:
        answer = running.complete(
            prompt="ab", max_tokens=1, n=2, temperature=0.3, top_k=-1, top_p=0.5, min_p=0.1, seed=2**40 + 7,
            presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.2, logit_bias={"5": -100}, ignore_eos=True,
            allowed_token_ids=[1, 2], bad_words=["no"], priority=-3, cache_salt="mine",
        )  # fmt: skip
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    first, second = (seen[i].sampling for i in "01")
    assert (first.temperature, first.top_k, first.top_p, first.min_p) == (0.3, 0, 0.5, 0.1)
    assert (first.seed, second.seed) == (2**40 % 2**32 + 7, 2**40 % 2**32 + 8)
    assert (first.presence_penalty, first.frequency_penalty, first.repetition_penalty) == (1.0, -1.0, 1.2)
    assert (dict(first.logit_bias), first.allowed_token_ids, first.stop_token_ids) == ({5: -100.0}, (1, 2), ())
    assert first.bad_words == (tuple(b"no"), tuple(b" no"))
    assert (seen["0"].priority, seen["0"].cache_salt) == (-3, "mine")
    assert seen["0"].deadline is not None


def test_structured_outputs(server):
    body = {"prompt": "ab", "max_tokens": 50}
    assert server.complete(**body, structured_outputs={"choice": ["}}"]})["choices"][0]["text"] == "}}"
    text = server.complete(**body, response_format={"type": "json_object"})["choices"][0]["text"]
    assert isinstance(json.loads(text), dict)
    fields = {"properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
    schema = {"type": "object", **fields}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for asked in ({"response_format": form}, {"structured_outputs": {"json": schema}}):
        assert set(json.loads(server.complete(**body, **asked)["choices"][0]["text"])) == {"a"}


def test_special_tokens_have_texts_where_asked(server):
    model = server.server.service.model
    end = model.special[BYTES.eos_id]
    prompt = [97, BYTES.eos_id]
    assert server.complete(prompt=prompt, max_tokens=0, echo=True, logprobs=0)["choices"][0]["logprobs"]["tokens"] == [
        "a",
        end,
    ]
