"""Too many requests, clients that leave or read slowly, and requests that never end: nothing waits, nothing leaks."""

import concurrent.futures
import json
import random
import resource
import socket
import time

import pytest
from kanawa_runtime.serve.engine.request import Request, SamplingParams

from .running_server import running_server, wait_for
from .scripted_engine import ScriptedEngine


def connected(server):
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def sent(server, body, *, path="/v1/completions"):
    """Returns a socket on which a request has been sent."""
    content = json.dumps(body).encode()
    made = connected(server)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    made.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return made


@pytest.fixture
def slow():
    """Answers take two seconds, were they not ended."""
    with running_server(ScriptedEngine(step_seconds=0.005, places=8, max_queued=8)) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request(slow, stream):
    made = sent(slow, {"prompt": "ab", "max_tokens": 400, "n": 3, "stream": stream})
    wait_for(lambda: slow.engine.places_used == 3)
    if stream:
        made.recv(100)
    made.close()
    wait_for(lambda: slow.engine.places_used == 0, 1)
    assert set(slow.engine.ended.values()) == {"abort"}
    text = slow.http.get("/metrics").text
    assert 'kanawa:http_responses_total{path="/v1/completions",status="499"} 1.0' in text


def test_disconnects_at_any_time_leak_nothing():
    chance = random.Random(0)
    with running_server(ScriptedEngine(step_seconds=0.001, places=16, max_queued=64)) as running:
        for _ in range(60):
            body = {"prompt": "ab", "max_tokens": chance.randrange(1, 300), "stream": chance.random() < 0.5}
            made = sent(running, body | {"n": chance.randrange(1, 4), "stop": chance.choice([None, "ba"])})
            time.sleep(chance.choice([0, 0, 0.002, 0.02]))
            if chance.random() < 0.3:
                # A reset, where closing only says that nothing more will come.
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            made.close()
        wait_for(lambda: running.engine.places_used == 0 and running.server.service.running == 0)
        assert running.complete(prompt="ab", max_tokens=3)["choices"][0]["text"] == "aba"


def test_a_full_queue_is_refused_at_once():
    with running_server(ScriptedEngine(step_seconds=0.01, places=1, max_queued=1)) as running:
        waiting = [sent(running, {"prompt": "a", "max_tokens": 400})]
        wait_for(lambda: running.engine.stats()["num_requests_running"] == 1)
        waiting.append(sent(running, {"prompt": "a", "max_tokens": 400}))
        wait_for(lambda: running.engine.places_used == 2)
        began = time.monotonic()
        answer = running.post("/v1/completions", {"prompt": "a", "n": 2})
        assert time.monotonic() - began < 1
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
        assert answer.json()["error"]["code"] == "queue_full"
        for made in waiting:
            made.close()
        wait_for(lambda: running.engine.places_used == 0)


def overload(running, seconds, clients):
    """Sends without pause from many clients; returns the seconds of each refusal, and of each first token."""
    refusals, firsts, wrong = [], [], []
    until = time.monotonic() + seconds

    def ask(number):
        body = {"prompt": "abc", "max_tokens": 5 + number % 20, "stream": True}
        while time.monotonic() < until:
            began = time.monotonic()
            with running.http.stream("POST", "/v1/completions", json=body) as answer:
                if answer.status_code == 429:
                    refusals.append(time.monotonic() - began)
                    answer.read()
                    time.sleep(0.02)
                    continue
                lines = [line for line in answer.iter_lines() if line]
                firsts.append(time.monotonic() - began)
                pieces = [json.loads(line[6:])["choices"][0]["text"] for line in lines[:-1]]
                if answer.status_code != 200 or "".join(pieces) != ("abc" * 9)[: body["max_tokens"]]:
                    wrong.append((answer.status_code, lines))

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        list(pool.map(ask, range(clients)))
    return refusals, firsts, wrong


def test_ten_times_overload_loses_nothing():
    engine = ScriptedEngine(step_seconds=0.01, places=2, max_queued=2)
    with running_server(engine) as running:
        refusals, firsts, wrong = overload(running, 1.5, 40)
        assert wrong == []
        assert len(refusals) > 20
        assert len(firsts) > 3
        wait_for(lambda: engine.places_used == 0)
        assert running.server.service.running == 0


@pytest.mark.nightly
def test_ten_times_overload_for_a_while():
    """Twenty seconds; `benchmarks/serving_overload.py` takes five minutes, with a model."""
    engine = ScriptedEngine(step_seconds=0.01, places=4, max_queued=4)
    with running_server(engine) as running:
        overload(running, 3, 80)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refusals, _, wrong = overload(running, 20, 80)
        assert wrong == []
        assert sorted(refusals)[int(len(refusals) * 0.99)] < 0.1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_a_client_that_reads_nothing_is_cut_off():
    engine = ScriptedEngine(step_seconds=0.001, max_length=200_000, places=8)
    with running_server(engine, write_seconds=0.5) as running:
        # More at once than the system's buffers hold, and an answer that goes on for minutes.
        body = {"prompt": [97] * 5000, "max_tokens": 100_000, "stream": True, "prompt_logprobs": 20, "n": 2}
        made = connected(running)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        content = json.dumps(body).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        made.sendall(head + b"Content-Length: %d\r\n\r\n" % len(content) + content)
        wait_for(lambda: running.server.service.running == 1)
        wait_for(lambda: running.server.service.running == 0 and engine.places_used == 0, 30)
        assert "length" not in engine.ended.values()
        made.close()


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{",
    ],
    ids=["nothing", "half of the headers", "half of the body"],
)
def test_a_client_that_sends_nothing_more_is_cut_off(beginning):
    with running_server(read_seconds=0.3) as running:
        with connected(running) as made:
            made.sendall(beginning)
            # Headers and body may come apart; then the connection is closed.
            answer = b"".join(iter(lambda: made.recv(10_000), b""))
            assert answer == b"" or (b"408" in answer and b"read_seconds" in answer)
        running.complete(prompt="a")


def test_headers_without_an_end(server):
    with connected(server) as made:
        made.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000)
        answer = made.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"its headers have more than 65536 bytes" in answer


def test_what_isnt_http_gets_an_error(server):
    with connected(server) as made:
        made.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n")
        answer = made.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"this is no HTTP request" in answer


def test_more_connections_than_are_taken():
    with running_server(max_connections=4) as running:
        held = [connected(running) for _ in range(4)]
        running.http.close()
        time.sleep(0.1)
        with connected(running) as made:
            answer = made.recv(10_000)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"max_connections" in answer
        for one in held:
            one.close()


def test_time_is_limited():
    engine = ScriptedEngine(step_seconds=0.01, places=1)
    with running_server(engine, max_seconds=0.3) as running:
        # What has been written by then is the answer; who never had a turn hears so.
        (choice,) = running.complete(prompt="ab", max_tokens=400)["choices"]
        assert choice["finish_reason"] == "abort"
        assert choice["text"].startswith("abab")
        engine.submit(Request(id="endless", prompt_ids=(1,), sampling=SamplingParams(max_tokens=500)), lambda _: None)
        assert running.refused(503, prompt="a")["code"] == "deadline_exceeded"
