"""Anything that the document allows, and much that it doesn't: no 5xx, no hang, no leak."""

import json
import random

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS, load_all_checks

from .running_server import running_server, wait_for
from .scripted_engine import ScriptedEngine

load_all_checks()
#: What an answer has to be. Whether a status is among those of the document is one of them; 5xx is another.
ASKED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
SILENT = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large, HealthCheck.large_base_example]
# A busy machine takes longer than the deadline of 0.2 s that hypothesis has; a request that hangs has its own limit.
QUIET = {"suppress_health_check": SILENT, "database": None, "deadline": None}
SLICE, LONG = 12, 400


@pytest.fixture(scope="module")
def fuzzed():
    """A server that is quick to answer; what was left behind shows at the end."""
    engine = ScriptedEngine(places=64, max_queued=64)
    with running_server(engine, max_seconds=60, max_n=4, max_prompts=4) as running:
        yield running
        wait_for(lambda: engine.places_used == 0 and running.server.service.running == 0)
        assert running.complete(prompt="ab", max_tokens=2)["choices"][0]["text"] == "ab"


def fuzz(server, examples):
    """Calls every operation with what schemathesis makes of the document."""
    document = server.http.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    checks = [CHECKS.get_one(name) for name in ASKED]
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) == sum(map(len, document["paths"].values()))
    for operation in operations:
        count = examples if operation.method == "post" else max(2, examples // 10)

        @given(case=operation.as_strategy())
        @settings(max_examples=count, phases=[Phase.generate], **QUIET)
        def call(case):
            case.call_and_validate(checks=checks, timeout=120)

        call()


def test_what_the_document_allows(fuzzed):
    fuzz(fuzzed, SLICE)


@pytest.mark.nightly
def test_what_the_document_allows_at_length(fuzzed):
    fuzz(fuzzed, LONG)


#: Bodies that work, to be broken.
GOOD = {
    "/v1/completions": {"prompt": "ab", "max_tokens": 3, "stop": ["c"], "logit_bias": {"5": 1}, "n": 2, "logprobs": 1},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": [{"type": "text", "text": "b"}]}],
        "max_tokens": 3,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
    },
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        "max_output_tokens": 3,
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "text": {"format": {"type": "text"}},
    },
    "/v1/messages": {
        "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "b"}]}],
        "max_tokens": 3,
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    },
    "/tokenize": {"prompt": "ab"},
    "/detokenize": {"tokens": [97, 98]},
}
ODD = ["\x00", "\ud800", "{{ 7*7 }}", "<|end|>", "../../etc/passwd", "(" * 200, "a" * 5000, "(a+)+$", "%s%n"]
NESTED = st.recursive(
    st.none(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner), max_leaves=8
)
HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.sampled_from(ODD),
    st.lists(st.integers(-5, 400), max_size=5),
    NESTED,
)
EXTRA = ("stream", "n", "stop", "structured_outputs", "prompt_logprobs", "echo", "seed", "bad_words", "tool_choice")


def broken(body, chance, value):
    """Returns a body with one of its values, at any depth, replaced by another, or one more."""
    made = json.loads(json.dumps(body))
    node = made
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if isinstance(node, dict) and chance.random() < 0.3:
            node[chance.choice(EXTRA)] = value
            return made
        key = chance.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and chance.random() < 0.6:
            node = node[key]
            continue
        node[key] = value
        return made


def break_bodies(server, examples):
    @given(path=st.sampled_from(sorted(GOOD)), seed=st.integers(0, 2**32), value=HOSTILE)
    @settings(max_examples=examples, **QUIET)
    def call(path, seed, value):
        body = broken(GOOD[path], random.Random(seed), value)
        # As ASCII: half a surrogate pair has no UTF-8, and clients in C send it all the same.
        answer = server.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
        assert answer.status_code in (200, 400, 404, 413, 422, 429), (body, answer.text)
        if answer.status_code != 200:
            assert answer.json()["error"]["message"]

    call()


def test_bodies_with_a_value_that_cant_be(fuzzed):
    break_bodies(fuzzed, 60)


@pytest.mark.nightly
def test_bodies_with_a_value_that_cant_be_at_length(fuzzed):
    break_bodies(fuzzed, 5000)
