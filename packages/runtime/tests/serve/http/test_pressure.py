"""Too many requests, clients that leave or read slowly, and requests that never end: nothing waits, nothing leaks."""

import concurrent.futures
import json
import random
import resource
import socket
import threading
import time

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa_runtime.serve.engine.request import Request, SamplingParams
from kanawa_runtime.serve.http.exchange import json_bytes
from kanawa_runtime.serve.structured.grammars import Grammars

from .running_server import BYTES, model_of, running_server, wait_for
from .scripted_engine import ScriptedEngine


def connected(server):
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def heard(made, text):
    """Returns what a connection says up to a text, or its end: headers and body may come apart."""
    answer = b""
    while text not in answer and (more := made.recv(10_000)):
        answer += more
    return answer


def sent(server, body, *, path="/v1/completions"):
    """Returns a socket on which a request has been sent."""
    content = json.dumps(body).encode()
    made = connected(server)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    made.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return made


@pytest.fixture
def slow():
    """Answers take half a minute, were they not ended."""
    with running_server(ScriptedEngine(step_seconds=0.08, places=8, max_queued=8), drain_seconds=0.0) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request(slow, stream):
    made = sent(slow, {"prompt": "ab", "max_tokens": 400, "n": 3, "stream": stream})
    wait_for(lambda: slow.engine.places_used == 3)
    if stream:
        made.recv(100)
    made.close()
    wait_for(lambda: slow.engine.places_used == 0, 15)
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
    with running_server(ScriptedEngine(step_seconds=0.1, places=1, max_queued=1)) as running:
        waiting = [sent(running, {"prompt": "a", "max_tokens": 400})]
        wait_for(lambda: running.engine.stats()["num_requests_running"] == 1)
        waiting.append(sent(running, {"prompt": "a", "max_tokens": 400}))
        wait_for(lambda: running.engine.places_used == 2)
        answer = running.post("/v1/completions", {"prompt": "a", "n": 2})
        # Neither of them has ended meanwhile.
        assert running.engine.ended == {}
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
        assert answer.json()["error"]["code"] == "queue_full"
        for made in waiting:
            made.close()
        wait_for(lambda: running.engine.places_used == 0)


def overload(running, seconds, clients, enough=lambda refusals, firsts: True):
    """Sends without pause from many clients; returns the seconds of each refusal, and of each first token.

    On a slow machine it goes on for up to two minutes more, until there is `enough` of both.
    """
    refusals, firsts, wrong = [], [], []
    until = time.monotonic() + seconds

    def goes_on():
        now = time.monotonic()
        return now < until or (now < until + 120 and not enough(refusals, firsts))

    def ask(number):
        body = {"prompt": "abc", "max_tokens": 5 + number % 20, "stream": True}
        while goes_on():
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
        many = lambda refusals, firsts: len(refusals) > 20 and len(firsts) > 3  # noqa: E731
        refusals, firsts, wrong = overload(running, 1.5, 40, many)
        assert wrong == []
        assert many(refusals, firsts)
        wait_for(lambda: engine.places_used == 0 and running.server.service.running == 0)


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
        wait_for(lambda: len(engine.ended) == 2 and running.server.service.running == 0 and engine.places_used == 0)
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
    # As long as a request that comes in two pieces may take, of a client that a busy machine holds up between them.
    with running_server(read_seconds=1.5) as running:
        with connected(running) as made:
            made.sendall(beginning)
            # Headers and body may come apart; then the connection is closed.
            answer = b"".join(iter(lambda: made.recv(10_000), b""))
            assert answer == b"" or (b"408" in answer and b"read_seconds" in answer)
        running.complete(prompt="a")


def test_headers_without_an_end(server):
    with connected(server) as made:
        made.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000)
        answer = heard(made, text := b"its headers have more than 65536 bytes")
    assert answer.startswith(b"HTTP/1.1 400")
    assert text in answer


def test_what_isnt_http_gets_an_error(server):
    with connected(server) as made:
        made.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n")
        answer = heard(made, text := b"this is not an HTTP request")
    assert answer.startswith(b"HTTP/1.1 400")
    assert text in answer


def test_more_connections_than_are_taken():
    with running_server(max_connections=4) as running:
        held = [connected(running) for _ in range(4)]
        running.http.close()
        time.sleep(0.1)
        with connected(running) as made:
            answer = heard(made, text := b"max_connections")
        assert answer.startswith(b"HTTP/1.1 503")
        assert text in answer
        for one in held:
            one.close()


def test_time_is_limited():
    engine = ScriptedEngine(step_seconds=0.01, places=1)
    with running_server(engine, max_seconds=1.5, drain_seconds=0.0) as running:
        # What has been written by then is the answer; who never had a turn hears so.
        (choice,) = running.complete(prompt="ab", max_tokens=400)["choices"]
        assert choice["finish_reason"] == "abort"
        assert choice["text"].startswith("abab")
        engine.submit(Request(id="endless", prompt_ids=(1,), sampling=SamplingParams(max_tokens=500)), lambda _: None)
        engine.may_step.clear()
        assert running.refused(503, prompt="a")["code"] == "deadline_exceeded"


class SlowGrammars:
    """Compiles as the real ones do, but for an expression that takes as long as a test wants."""

    def __init__(self):
        self.real, self.begun, self.go_on = Grammars(BYTES, 320), [], threading.Event()

    def compile(self, kind, spec=None, *, field=None):
        if spec == "slow":
            self.begun.append(time.monotonic())
            assert self.go_on.wait(60)
        return self.real.compile(kind, spec, field=field)


def structured(server, regex):
    return server.post("/v1/completions", {"prompt": "a", "max_tokens": 2, "structured_outputs": {"regex": regex}})


def test_slow_grammars_hold_nobody_up_and_are_bounded():
    grammars, engine = SlowGrammars(), ScriptedEngine()
    model = model_of(engine, grammars=grammars)
    with running_server(model=model, max_slow_grammars=3, grammar_seconds=30.0) as running:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            slow = [pool.submit(structured, running, "slow") for _ in range(3)]
            wait_for(lambda: len(grammars.begun) == 3, 20)
            began = time.monotonic()
            # More than the threads that compile, and each of them has a slow one by now.
            assert running.complete(prompt="ab", max_tokens=2)["choices"][0]["text"] == "ab"
            wait_for(lambda: structured(running, "(a|b)+").status_code == 503, 20)
            refused = structured(running, "(a|b)+").json()["error"]
            assert (refused["code"], "max_slow_grammars" in refused["message"]) == ("grammars_busy", True)
            assert time.monotonic() - began < 25
            grammars.go_on.set()
            assert [done.result().status_code for done in slow] == [200] * 3
        wait_for(lambda: structured(running, "(a|b)+").status_code == 200, 20)


def test_quick_grammars_pass_slow_ones():
    grammars = SlowGrammars()
    model = model_of(ScriptedEngine(), grammars=grammars)
    # What the first grammar of a process imports and compiles is nobody's wait here.
    grammars.compile("regex", "(a|b)+")
    with running_server(model=model, worker_threads=1, grammar_seconds=3.0) as running:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            slow = pool.submit(structured, running, "slow")
            wait_for(lambda: grammars.begun, 20)
            assert structured(running, "(a|b)+").status_code == 200
            assert slow.result().status_code == 422
            assert "longer than 3 s to compile" in slow.result().json()["error"]["message"]
        grammars.go_on.set()


def test_a_full_queue_refuses_before_it_reads(slow):
    def submit(count):
        for _ in range(count):
            request = Request(id=f"{time.monotonic_ns()}", prompt_ids=(97,), sampling=SamplingParams(max_tokens=400))
            slow.engine.submit(request, lambda _: None)

    submit(8)
    # Half a minute of work for all places; what comes now waits.
    wait_for(lambda: slow.engine.stats()["num_requests_running"] == 8)
    submit(8)
    # Not even JSON: with a full queue nothing is made of a body.
    answer = slow.http.post("/v1/completions", content=b"{", headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
    assert int(answer.headers["Retry-After"]) >= 1
    assert slow.http.post("/tokenize", json={"prompt": "ab"}).status_code == 200


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="no clocks of single threads here")
def test_long_answers_do_not_hold_the_loop_up():
    with running_server(ScriptedEngine(max_length=200_000), max_body_bytes=2**22) as running:
        # The loop's own work, not the time that passes: on a busy machine anything may wait.
        clock, gaps, ended = time.pthread_getcpuclockid(running.thread.ident), [], threading.Event()

        def look():
            with httpx2.Client(base_url=running.url, timeout=60) as client:
                while not ended.is_set():
                    began = time.clock_gettime(clock)
                    client.get("/health")
                    gaps.append(time.clock_gettime(clock) - began)

        looking = threading.Thread(target=look)
        looking.start()
        prompt, began = [97 + i % 20 for i in range(100_000)], time.process_time()
        answer = running.complete(prompt=prompt, max_tokens=1, prompt_logprobs=5, echo=True, return_token_ids=True)
        took = time.process_time() - began
        ended.set()
        looking.join()
    (choice,) = answer["choices"]
    assert len(choice["prompt_logprobs"]) == len(choice["prompt_token_ids"]) == 100_000
    assert choice["prompt_logprobs"][7]["104"]["rank"] == 1
    # Made and written on the loop, it would have been most of the work in one piece.
    assert max(gaps) < took / 4, (max(gaps), took)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(st.integers(), min_size=250, max_size=530)
            | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
@settings(deadline=None, max_examples=50)
def test_json_in_slices_is_json(content):
    assert json_bytes(content) == json.dumps(content, separators=(",", ":")).encode()
