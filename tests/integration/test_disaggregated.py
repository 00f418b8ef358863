"""Two engines, one that takes prompts in and one that goes on: the tokens of a single one, and no page left behind."""

import contextlib
import dataclasses
import queue
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import kanawa as kn
import numpy as np
import prefill_process
import pytest
from asking import ids_of, outputs_of
from kanawa.arrays.tree import flatten_paths, map_paths, unflatten_paths
from kanawa.composition.plain import adapter_factors
from kanawa.contracts import StoredAdapter
from kanawa.errors import UsageError
from kanawa_layers.modifiers.weights import LoRAModifier
from kanawa_runtime.serve.disaggregated.engine import DecodeEngine, TcpConnector
from kanawa_runtime.serve.disaggregated.prefill_server import PrefillServer
from kanawa_runtime.serve.disaggregated.wire import Wire, WireError, request_message
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import QueueFullError, Request, RequestError, SamplingParams
from ports import free_port
from prefill_process import SIZES, model

TOKEN = b"a shared secret"
KINDS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 7, "logprobs": 1},
    {"temperature": 0.0, "presence_penalty": 1.0, "logit_bias": {3: 2.0}},
    {"temperature": 0.0, "prompt_logprobs": 1},
    {"temperature": 0.0, "max_tokens": 1},
    {"temperature": 0.7, "stop_token_ids": tuple(range(0, 50, 5))},
]


@pytest.fixture(scope="module")
def engines():
    """Returns an engine that prefills and one that decodes, in this process."""
    made = [LLMEngine(*model(), config=EngineConfig(**SIZES)) for _ in range(2)]
    for engine in made:
        engine.start()
    yield made
    for engine in made:
        engine.stop()
        engine.check_pages()


@pytest.fixture
def server(engines):
    listening = PrefillServer(engines[0], TOKEN, expiry=20.0)
    yield listening
    listening.stop()
    assert free_again(engines[0])


def free_again(engine):
    """Returns whether an engine soon holds no pages."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if not engine.held_pages() and engine.stats()["kv_cache_usage_perc"] == 0.0:
            return True
        time.sleep(0.02)
    return False


def asked(count, **more):
    rng = np.random.default_rng(3)
    return [
        Request(
            id=str(i),
            prompt_ids=tuple(rng.integers(0, 50, 1 + (5 * i) % 23).tolist()),
            sampling=SamplingParams(**{"max_tokens": 2 + i % 9, "seed": i, **KINDS[i % len(KINDS)], **more}),
        )
        for i in range(count)
    ]


def answers(engine, requests):
    return {name: summed(outputs) for name, outputs in outputs_of(engine, requests).items()}


def summed(outputs):
    logprobs = [round(p.logprob, 3) for output in outputs for p in output.logprobs or ()]
    told = [len(output.prompt_logprobs) for output in outputs if output.prompt_logprobs]
    return ids_of(outputs), outputs[-1].finish_reason, outputs[-1].stop_token_id, logprobs, told


def decoding(engines, port, token=TOKEN, **options):
    return DecodeEngine(engines[1], TcpConnector("127.0.0.1", port, token, **options), at_once=3)


def test_two_engines_give_the_tokens_of_one(engines, server):
    requests = asked(21)
    wanted = answers(engines[1], requests)
    decode = decoding(engines, server.port)
    before = engines[0].stats()["prompt_tokens"]
    assert answers(decode, requests) == wanted
    stats = decode.stats()
    assert (stats["kv_transfer_prompts"], stats["kv_transfer_failures"]) == (21, 0)
    assert stats["kv_transfer_bytes"] > 0
    # The prompts were taken in there, every token of them, and nowhere else.
    assert engines[0].stats()["prompt_tokens"] - before == sum(len(r.prompt_ids) for r in requests)
    assert stats["num_preemptions"] == engines[1].stats()["num_preemptions"]
    assert stats["compilations"] == engines[0].stats()["compilations"] == 0
    # What came over is found again by whoever begins alike.
    long = Request(id="again", prompt_ids=requests[-1].prompt_ids, sampling=SamplingParams(max_tokens=1))
    outputs = queue.SimpleQueue()
    engines[1].submit(long, outputs.put)
    assert outputs.get(timeout=120).cached_tokens == (len(long.prompt_ids) - 1) // 4 * 4


def test_a_prefill_engine_in_a_process_of_its_own(engines):
    requests = asked(7)
    wanted = answers(engines[1], requests)
    script = Path(prefill_process.__file__)
    command = [sys.executable, str(script), TOKEN.decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            decode = decoding(engines, int(child.stdout.readline()))
            assert answers(decode, requests) == wanted
            assert decode.stats()["kv_transfer_failures"] == 0
            rest, _ = child.communicate(timeout=300)
            assert rest == "held 0\n"
            # Gone: the same requests are answered by this engine alone.
            assert answers(decode, requests) == wanted
            assert decode.stats()["kv_transfer_failures"] == 7
        finally:
            child.kill()


def asking(port, request, token=TOKEN):
    """Returns a wire on which a request has been sent, and its socket."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=120)
    wire = Wire(connection, token, listens=False, timeout=120)
    wire.send({"hello": True})
    return connection, wire, request_message(request, 0)


CONSUMER = """
import socket, sys, time
from kanawa_runtime.serve.disaggregated.wire import request_message
from kanawa_runtime.serve.disaggregated.wire import Wire
from kanawa_runtime.serve.engine.request import Request
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
wire = Wire(connection, sys.argv[2].encode(), listens=False, timeout=60)
wire.send({"hello": True})
wire.send({"layout": sys.argv[3], "request": request_message(Request(id="x", prompt_ids=tuple(range(20))), 0)})
print(wire.receive()[0]["pages"], flush=True)
time.sleep(600)
"""


def test_a_consumer_that_is_killed_leaves_no_page_behind(engines, server):
    engine = engines[0]
    command = [sys.executable, "-c", CONSUMER, str(server.port), TOKEN.decode(), engine.transfer.layout]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "5\n"
        assert sum(map(len, engine.held_pages().values())) == 5
        child.kill()
    assert free_again(engine)


def test_a_consumer_that_falls_silent_loses_its_pages(engines):
    engine = engines[0]
    server = PrefillServer(engine, TOKEN, expiry=3.0)
    try:
        connection, wire, message = asking(server.port, Request(id="x", prompt_ids=tuple(range(9))))
        with connection:
            wire.send({"layout": engine.transfer.layout, "request": message})
            assert wire.receive()[0]["pages"] == 3
            # Neither read on nor closed.
            assert free_again(engine)
    finally:
        server.stop()


@pytest.mark.parametrize("token", [b"another", b"\0"])
def test_who_does_not_know_the_token_gets_nothing_and_costs_nothing(engines, server, token):
    before = engines[0].stats()["prompt_tokens"]
    with pytest.raises(WireError, match="gone|closed|signed"):
        TcpConnector("127.0.0.1", server.port, token).prefill(
            asked(1)[0], 0, engines[0].transfer.layout, engines[0].transfer.shapes, threading.Event()
        )
    # The server's own greeting aside, it answers nobody; and whoever asks it does the work itself.
    decode = decoding(engines, server.port, token)
    assert answers(decode, asked(2)) == answers(engines[1], asked(2))
    assert decode.stats()["kv_transfer_failures"] == 2
    assert engines[0].stats()["prompt_tokens"] == before


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 12 + b"x" * 100, b"\x80\x04\x95" + b"\0" * 60]
)
def test_rubbish_is_hung_up_on(engines, server, sent):
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        greeting = connection.recv(1000)
        assert greeting.startswith(b"kanawa-pages-2\n")
        connection.sendall(sent)
        # Closed before all was read, a connection is reset, and has no end left to shut.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            assert connection.recv(1000) == b""


def test_what_the_other_engine_cannot_do_is_said_or_done_here(engines, server):
    layout = engines[0].transfer.layout
    for wrong, said in [
        ({"layout": "another", "request": {}}, "its pages have another layout"),
        ({"layout": layout, "request": {**request_message(asked(1)[0], 0), "prompt_ids": [99]}}, "prompt_ids"),
        ({"layout": layout, "request": {**request_message(asked(1)[0], 0), "adapter": "x"}}, "no adapters"),
    ]:
        connection, wire, _ = asking(server.port, asked(1)[0])
        with connection:
            wire.send(wrong)
            assert said in wire.receive()[0]["refused"]
    decode = decoding(engines, server.port)
    with pytest.raises(RequestError, match="temperature") as refused:
        decode.submit(Request(id="x", prompt_ids=(1,), sampling=SamplingParams(temperature=-1.0)), print)
    assert refused.value.field == "temperature"
    plain = LLMEngine(*model(), config=EngineConfig(**{**SIZES, "transfers_pages": False}))
    with pytest.raises(UsageError, match="can't exchange pages: set transfers_pages"):
        PrefillServer(plain, TOKEN)
    with pytest.raises(UsageError, match="can't exchange pages: set transfers_pages"):
        DecodeEngine(plain, TcpConnector("127.0.0.1", 1, TOKEN))
    with pytest.raises(UsageError, match="an empty token protects nothing"):
        PrefillServer(engines[0], b"")


def test_pages_of_other_weights_are_not_mixed_in(engines, server):
    _, params = model()
    before, requests = engines[1].transfer.layout, asked(3)
    engines[1].load({**params, "norm": {"scale": 2.0 * params["norm"]["scale"]}})
    try:
        assert engines[1].transfer.layout != before
        decode = decoding(engines, server.port)
        assert answers(decode, requests) == answers(engines[1], requests)
        assert decode.stats()["kv_transfer_failures"] == 3
    finally:
        engines[1].load(params)
    assert engines[1].transfer.layout == before


class LoadsMeanwhile(TcpConnector):
    """Other weights come to the engine that asked while the pages are on their way."""

    engine = params = None

    def prefill(self, *asked):
        given = super().prefill(*asked)
        self.engine.load(self.params)
        return given


def test_pages_that_come_after_other_weights_are_dropped(engines, server):
    _, params = model()
    other = jax.tree.map(lambda x: x[..., ::-1] * 2.0, params)
    request = Request(
        id="late", prompt_ids=tuple(range(3, 24)), sampling=SamplingParams(max_tokens=6, temperature=0.0, logprobs=1)
    )
    connector = LoadsMeanwhile("127.0.0.1", server.port, TOKEN)
    connector.engine, connector.params = engines[1], other
    try:
        engines[1].load(other)
        wanted = answers(engines[1], [request])
        engines[1].load(params)
        assert answers(engines[1], [request]) != wanted
        engines[1].load(params)
        assert answers(DecodeEngine(engines[1], connector, at_once=1), [request]) == wanted
        # And nobody finds them later.
        assert answers(engines[1], [request]) == wanted
    finally:
        engines[1].load(params)


class Slow:
    """A connector that never answers until it is told to give up."""

    def prefill(self, request, seed, layout, shapes, gone):
        assert gone.wait(120)
        message = "given up"
        raise WireError(message)


def test_a_request_under_way_can_be_cancelled_and_ended(engines):
    decode, outputs = DecodeEngine(engines[1], Slow()), queue.SimpleQueue()
    for request in asked(2):
        decode.submit(request, outputs.put)
    assert decode.stats()["num_requests_waiting"] == 2
    decode.cancel("1")
    assert outputs.get(timeout=120).finish_reason == "abort"
    assert not decode.drain(0.1)
    decode.cancel("0")
    assert outputs.get(timeout=120).request_id == "0"


def test_a_pair_that_cant_be_one_is_told_before_the_first_request(engines, server):
    layout = engines[1].pages_layout()
    TcpConnector("127.0.0.1", server.port, TOKEN).check_layout(layout)
    with pytest.raises(
        UsageError, match="can't prefill prompts for this one: its pages have another layout: both.*same run, step"
    ):
        TcpConnector("127.0.0.1", server.port, TOKEN).check_layout("another")
    with pytest.raises(
        UsageError, match="this engine has no adapters, and the request asks for 'x'.*adapters and engine"
    ):
        TcpConnector("127.0.0.1", server.port, TOKEN).check_layout(layout, "x")
    with pytest.raises(UsageError, match="it hung up.*give both the same --pages-token-file"):
        TcpConnector("127.0.0.1", server.port, b"another").check_layout(layout)
    port = free_port()
    with pytest.raises(WireError, match=f"no engine can be reached at 127.0.0.1:{port}"):
        TcpConnector("127.0.0.1", port, TOKEN).check_layout(layout)


class Anything:
    """A grammar of all texts."""

    def allowed(self):
        return np.full(2, -1, np.int32)

    def accept(self, token_id):
        return False

    def fork(self):
        return self


def test_a_request_with_a_grammar_has_an_id_of_its_own_and_waits_for_room_too(engines):
    decode, outputs = DecodeEngine(engines[1], Slow()), queue.SimpleQueue()
    plain = asked(1)[0]
    shaped = dataclasses.replace(plain, sampling=SamplingParams(max_tokens=3, grammar=Anything()))
    decode.submit(plain, outputs.put)
    with pytest.raises(RequestError, match="a request with the id '0' is running already") as refused:
        decode.submit(shaped, outputs.put)
    assert refused.value.field == "id"
    assert summed(outputs_of(decode, [dataclasses.replace(shaped, id="own")])["own"])[1] == "length"
    assert not decode.drain(0.0)
    with pytest.raises(QueueFullError, match="the engine is draining, with 1 prompts in transfer"):
        decode.submit(dataclasses.replace(shaped, id="late"), outputs.put)
    decode.cancel("0")
    assert outputs.get(timeout=120).finish_reason == "abort"


def holding(engine, name, tokens):
    """Has an engine hold the pages of a prompt."""
    outputs = queue.SimpleQueue()
    prompt = tuple((7 * place + len(engine.held_pages())) % 50 for place in range(tokens))
    request = Request(id=name, prompt_ids=prompt, sampling=SamplingParams(max_tokens=1, temperature=0.0))
    engine.submit(request, outputs.put, hold_pages=True)
    assert outputs.get(timeout=120).finish_reason == "length"


def test_an_engine_whose_pages_are_all_held_waits_without_working(engines):
    engine, outputs = engines[0], queue.SimpleQueue()
    for i in range(3):
        holding(engine, f"held {i}", 49 + i % 2)
    plans, plan = [], engine._core.scheduler.schedule
    engine._core.scheduler.schedule = lambda **how: plans.append(how) or plan(**how)
    try:
        long = Request(id="waits", prompt_ids=tuple(range(40)), sampling=SamplingParams(max_tokens=2, temperature=0.0))
        engine.submit(long, outputs.put)
        late = Request(id="late", prompt_ids=tuple(range(40)), deadline=time.monotonic() + 0.5)
        engine.submit(late, outputs.put)
        ended = outputs.get(timeout=120)
        assert (ended.request_id, ended.finish_reason) == ("late", "abort")
        assert engine.stats()["num_requests_waiting"] == 1
        assert len(plans) < 20
    finally:
        engine._core.scheduler.schedule = plan
        for name in engine.held_pages():
            engine.release_pages(name)
    last = outputs.get(timeout=120)
    while last.finish_reason is None:
        last = outputs.get(timeout=120)
    assert last.finish_reason == "length"


def test_more_connections_than_may_be_open_are_hung_up_on_and_slow_ones_too(engines):
    server = PrefillServer(engines[0], TOKEN, at_once=3, hello_seconds=8.0)
    try:
        address = ("127.0.0.1", server.port)
        silent = [socket.create_connection(address, timeout=120) for _ in range(3)]
        assert all(connection.recv(100) for connection in silent)
        with socket.create_connection(address, timeout=120) as more:
            assert more.recv(100) == b""
        assert server.rejected == 1
        # The request is answered all the same: by the engine that asked.
        decode = decoding(engines, server.port)
        assert answers(decode, asked(1)) == answers(engines[1], asked(1))
        assert decode.stats()["kv_transfer_failures"] == 1
        began = time.monotonic()
        for byte in b"\0\0\0\x09\0\0\0\0\0\0":
            # A byte at a time, which no wait for the next one would ever end.
            with contextlib.suppress(OSError):
                silent[0].sendall(bytes([byte]))
            time.sleep(1)
        with contextlib.suppress(ConnectionResetError):
            assert [connection.recv(100) for connection in silent] == [b""] * 3
        assert time.monotonic() - began < 60
        assert answers(decode, asked(2)) == answers(engines[1], asked(2))
        assert decode.stats()["kv_transfer_prompts"] == 2
        # What has not proved the token may not send much either.
        with socket.create_connection(address, timeout=120) as large:
            large.recv(100)
            large.sendall(struct.pack("!IQ", 2**20, 0) + b"x" * 100)
            with contextlib.suppress(ConnectionResetError):
                assert large.recv(100) == b""
        for connection in silent:
            connection.close()
    finally:
        server.stop()


def adapter(seed):
    """Returns an adapter of the model, changed by a seed."""
    built = LoRAModifier.Config(rank=2, alpha=6.0, targets=("**.stack.**",)).build()(model()[0].config.clone()).build()
    rng = np.random.default_rng(seed)
    own = map_paths(lambda _, s: np.asarray(0.15 * rng.standard_normal(s.shape), np.float32), kn.param_specs(built))
    own = {path: leaf for path, leaf in flatten_paths(own).items() if ".adapter." in path}
    return StoredAdapter(adapter_factors(built, unflatten_paths(own)))


def test_adapters_are_known_by_what_they_hold():
    config = EngineConfig(**SIZES, adapter_slots=2, adapter_rank=2)
    pair = [LLMEngine(*model(), config=config) for _ in range(2)]
    for engine, (same, other) in zip(pair, [(1, 2), (1, 3)], strict=True):
        engine.start()
        engine.add_adapter("same", adapter(same))
        engine.add_adapter("other", adapter(other))
    server = PrefillServer(pair[0], TOKEN)
    try:
        decode = decoding(pair, server.port)
        for name, transfers, failures in [("same", 3, 0), ("other", 3, 3), (None, 6, 3)]:
            requests = [dataclasses.replace(request, adapter=name) for request in asked(3, temperature=0.0)]
            assert answers(decode, requests) == answers(pair[1], requests)
            stats = decode.stats()
            assert (stats["kv_transfer_prompts"], stats["kv_transfer_failures"]) == (transfers, failures)
        connection, wire, message = asking(server.port, asked(1)[0])
        with connection:
            wire.send({"layout": pair[1].pages_layout("other"), "request": {**message, "adapter": "other"}})
            assert "in adapter 'other' the same numbers" in wire.receive()[0]["refused"]
    finally:
        server.stop()
        for engine in pair:
            engine.stop()
            engine.check_pages()
