"""What is sent to hurt: a body that can't be gets its status, bytes that are no request an answer or an end."""

import io
import json
import logging
import socket

import pytest
from kanawa_runtime.serve.http.lifecycle import Sparing

from .hostile_requests import BODIES, CHAT, COMPLETIONS, RAW, TEXTS, http, nested_schema, written
from .running_server import running_server, wait_for
from .scripted_engine import ScriptedEngine

ALLOWED = (200, 400, 403, 404, 413, 415, 422)
#: Requests a slice of one test: a test each would be a second of pytest's own, in all.
SLICE = 40


def slices(listed):
    return [listed[start : start + SLICE] for start in range(0, len(listed), SLICE)]


@pytest.fixture(scope="module")
def hurt():
    """A server whose clients get little time; what they left behind shows at the end."""
    engine = ScriptedEngine(places=16, max_queued=16)
    with running_server(engine, read_seconds=0.5, keep_alive_seconds=0.2) as running:
        yield running
        wait_for(lambda: engine.places_used == 0 and running.server.service.running == 0)
        # Whoever is held up between headers and body, as on a busy machine, is cut off here: once more, then.
        running.http.headers["Connection"] = "close"
        asked = {"prompt": "ab", "max_tokens": 2}
        answer = wait_for(lambda: answered(running.post(COMPLETIONS, asked)))
        assert answer["choices"][0]["text"] == "ab"


def answered(answer):
    """Returns what an answer holds, None for a client that was too slow."""
    return None if answer.status_code == 408 else answer.json()


def send(server, path, content):
    return server.http.post(path, content=content, headers={"Content-Type": "application/json"})


def check(answer, asked):
    assert answer.status_code in ALLOWED, (asked, answer.text)
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert error["message"], asked
        assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("number", range(len(slices(BODIES))))
def test_bodies(server, number):
    for path, body in slices(BODIES)[number]:
        check(send(server, path, written(body)), str(body)[:300])


def test_texts_that_are_hardly_json(server):
    for text in TEXTS:
        check(send(server, COMPLETIONS, text), text[:100])


@pytest.mark.parametrize("field", ["metadata", "chat_template_kwargs", "response_format", "tools"])
def test_what_is_nested_just_less_deep_than_can_be_read(server, field):
    """Written again, or walked, it would need more of Python's stack than reading it took."""
    for levels in (30, 45, 47, 48, 49, 50, 60):
        schema = nested_schema(levels)
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "metadata": schema}
        if field == "chat_template_kwargs":
            body[field] = schema
        elif field == "response_format":
            body[field] = {"type": "json_schema", "json_schema": {"schema": schema}}
        elif field == "tools":
            body |= {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}
            body["tool_choice"] = "required"
        check(send(server, CHAT, written(body)), (field, levels))


def heard(server, data):
    """Returns what a server answers to bytes, until it ends the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    parts = []
    with socket.create_connection((host, int(port)), timeout=60) as made:
        made.settimeout(60)
        try:
            made.sendall(data)
            while part := made.recv(65536):
                parts.append(part)
        except ConnectionError:
            pass  # it said what it had to, and heard no more
    return b"".join(parts)


@pytest.mark.parametrize("number", range(len(RAW)))
def test_bytes(hurt, number):
    answer = heard(hurt, RAW[number])
    statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert all(status == 100 or 200 <= status < 500 for status in statuses), answer
    assert statuses or answer == b""


def test_what_is_no_request_is_counted_and_said_once_in_a_while(server):
    def count():
        lines = server.http.get("/metrics").text.splitlines()
        name = 'kanawa:http_responses_total{path="malformed",status="400"}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    written, log = io.StringIO(), logging.getLogger("uvicorn.error")
    handler = logging.StreamHandler(written)
    handler.addFilter(Sparing(most=2))
    log.addHandler(handler)
    try:
        before = count()
        for _ in range(5):
            heard(server, b"\x16\x03\x01 no request\r\n\r\n")
        assert count() == before + 5
    finally:
        log.removeHandler(handler)
    assert written.getvalue().splitlines() == ["Invalid HTTP request received."] * 2


def test_a_client_of_http_1_0_gets_a_stream_without_chunks(hurt):
    body = b'{"prompt":"ab","max_tokens":3,"stream":true}'
    head, _, content = heard(hurt, http(b"POST /v1/completions HTTP/1.0", body=body)).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    events = content.decode().strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    texts = [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:-1]]
    assert "".join(texts) == "aba"


def test_a_compressed_body_is_told_of(server):
    answer = server.http.post(
        COMPLETIONS, content=b"\x1f\x8b", headers={"Content-Type": "application/json", "Content-Encoding": "gzip"}
    )
    assert answer.status_code == 415
    assert answer.json()["error"]["message"] == "Content-Encoding is gzip, expected none: send the body as it is"


def test_a_client_that_sends_its_next_request_ahead_and_leaves_ends_the_first():
    engine = ScriptedEngine(step_seconds=0.05, places=2)
    with running_server(engine) as running:
        host, port = running.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as made:
            made.sendall(http(body=b'{"prompt":"ab","max_tokens":500}') + http() * 3)
            wait_for(lambda: engine.places_used == 1)
        wait_for(lambda: engine.places_used == 0)
        assert list(engine.ended.values()) == ["abort"]


@pytest.mark.parametrize("ahead", [http() * 40, http(length=200_000, body=b" " * 200_000)])
def test_what_is_sent_ahead_is_bounded(ahead):
    engine = ScriptedEngine(step_seconds=0.01, places=2)
    with running_server(engine) as running:
        answer = heard(running, http(body=b'{"prompt":"ab","max_tokens":500}') + ahead)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"it sends more than 16 requests, or a long one, ahead of an answer" in answer
        wait_for(lambda: engine.places_used == 0)
        assert set(engine.ended.values()) <= {"abort"}


@pytest.mark.parametrize("headers", [(), (b"Connection: close",)], ids=["kept", "closed"])
def test_a_client_that_takes_no_whole_answer_is_cut_off(headers):
    """The answer is complete, so that nothing but the connection itself is left to wait for."""
    engine = ScriptedEngine(max_length=200_000, places=2)
    with running_server(engine, write_seconds=0.2, keep_alive_seconds=0.2, max_connections=1) as running:
        host, port = running.url.removeprefix("http://").split(":")
        body = {"prompt": [97] * 50_000, "max_tokens": 1, "echo": True, "prompt_logprobs": 5, "logprobs": 5}
        with socket.socket() as made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made.connect((host, int(port)))
            made.sendall(http(b"POST /v1/completions HTTP/1.1", *headers, body=json.dumps(body).encode()))
            wait_for(lambda: engine.ended, 60)
            # There is room for one connection, and it is this one's.
            wait_for(lambda: heard(running, http(b"GET /health HTTP/1.1")).startswith(b"HTTP/1.1 200"), 60)
