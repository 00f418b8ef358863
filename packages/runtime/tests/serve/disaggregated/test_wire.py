"""Frames between two engines, and what the command line says of a second one."""

import socket
import struct
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa.errors import UsageError
from kanawa_runtime.commands.serve import adapters_of
from kanawa_runtime.serve.disaggregated.pairing import pairing_of
from kanawa_runtime.serve.disaggregated.wire import (
    Wire,
    WireError,
    output_message,
    output_of,
    request_message,
    request_of,
)
from kanawa_runtime.serve.engine.page_transfer import PageTransfer
from kanawa_runtime.serve.engine.request import Output, Request, SamplingParams, TokenLogprobs

OPENED = []


@pytest.fixture(autouse=True)
def _closed():
    yield
    while OPENED:
        OPENED.pop().close()


def sockets():
    """Returns two sockets that face each other, closed after the test."""
    both = socket.socketpair()
    OPENED.extend(both)
    return both


def pair(token=b"one", other=b"one"):
    """Returns two wires that face each other, and their sockets."""
    ours, theirs = sockets()
    made = {}
    greeting = threading.Thread(target=lambda: made.update(wire=Wire(ours, token, listens=True, timeout=60)))
    greeting.start()
    theirs_wire = Wire(theirs, other, listens=False, timeout=60)
    greeting.join()
    return made["wire"], theirs_wire, ours, theirs


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(max_size=8), st.integers() | st.text()), st.binary(max_size=3000))
def test_frames_arrive_as_they_were_sent(header, payload):
    ours, theirs, *both = pair()
    for sender, receiver in [(ours, theirs), (theirs, ours), (ours, theirs)]:
        sender.send(header, payload)
        assert receiver.receive(max_payload=3000) == (header, payload)
    for each in both:
        each.close()


def raw(**changes):
    """Returns a listener, the bytes of a frame for it, and both sockets."""
    ours, theirs, our_socket, their_socket = pair(**changes)
    theirs.send({"a": 1}, b"payload")
    content = bytearray(our_socket.recv(10_000))
    return ours, content, our_socket, their_socket


@pytest.mark.parametrize("place", [12, 15, 20, -33, -1])
def test_a_changed_byte_is_not_taken(place):
    ours, content, _our_socket, their_socket = raw()
    content[place] ^= 1
    their_socket.sendall(content)
    with pytest.raises(WireError, match="isn't signed with this engine's token"):
        ours.receive(max_payload=100)


def test_a_frame_played_again_or_back_is_not_taken():
    ours, content, _our_socket, their_socket = raw()
    their_socket.sendall(content + content)
    assert ours.receive(max_payload=100)[0] == {"a": 1}
    with pytest.raises(WireError, match="isn't signed"):
        ours.receive(max_payload=100)
    ours, theirs, our_socket, _ = pair()
    theirs.send({"a": 1})
    our_socket.sendall(our_socket.recv(10_000))
    with pytest.raises(WireError, match="isn't signed"):
        theirs.receive()


def test_lengths_are_bounded_before_anything_is_read():
    for lengths in [(2**31, 0), (10, 2**62), (10, 101)]:
        ours, _theirs, _our_socket, their_socket = pair()
        their_socket.sendall(struct.pack("!IQ", *lengths))
        with pytest.raises(WireError, match="longer than expected"):
            ours.receive(max_payload=100)


def test_the_token_the_greeting_and_the_end():
    ours, theirs, _our_socket, their_socket = pair(other=b"two")
    theirs.send({})
    with pytest.raises(WireError, match="give both engines the same one"):
        ours.receive()
    with pytest.raises(WireError, match="an empty token protects nothing"):
        Wire(their_socket, b"", listens=False, timeout=1)
    left, right = sockets()
    left.sendall(b"HTTP/1.1 400 Bad Request\r\n" + b" " * 100)
    with pytest.raises(WireError, match="not an engine that exchanges pages"):
        Wire(right, b"one", listens=False, timeout=1)
    ours, theirs, _our_socket, their_socket = pair()
    assert not ours.is_gone()
    theirs.send({"a": 1})
    assert not ours.is_gone()
    ours.receive()
    their_socket.close()
    assert ours.is_gone()
    with pytest.raises(WireError, match="gone or too slow"):
        ours.receive()


def test_waiting_ends_with_a_frame_with_the_request_and_in_time():
    ours, theirs, our_socket, _ = pair()
    theirs.send({"a": 1})
    ours.await_frame(threading.Event())
    assert ours.receive()[0] == {"a": 1}
    gone = threading.Event()
    gone.set()
    with pytest.raises(WireError, match="the request was cancelled"):
        ours.await_frame(gone)
    our_socket.settimeout(0.1)
    with pytest.raises(WireError, match="the other engine is too slow"):
        ours.await_frame(threading.Event())


def test_samples_of_every_array_tell_weights_apart():
    def known(**arrays):
        transfer = PageTransfer.__new__(PageTransfer)
        transfer.shapes = []
        transfer.fingerprint_weights(arrays)
        return transfer.layout

    ones = np.ones((100, 100), np.float32)
    assert known(a=ones, b=ones) == known(a=ones.copy(), b=ones)
    assert known(a=ones, b=ones) != known(a=ones, b=2 * ones)
    assert known(a=ones) != known(b=ones)
    assert known(a=ones) != known(a=ones.astype(np.float16))


def test_requests_and_outputs_travel_whole():
    sampling = SamplingParams(
        max_tokens=9, min_tokens=3, temperature=0.5, top_k=3, seed=7, stop_token_ids=(4, 5), logprobs=2,
        logit_bias={3: -1.5}, allowed_token_ids=(1, 2), bad_words=((1, 2), (3,)), repetition_penalty=1.2,
    )  # fmt: skip
    request = Request(id="x", prompt_ids=(1, 2), sampling=sampling, adapter="a", cache_salt="s", priority=2)
    read = request_of(request_message(request, 99))
    assert (read.prompt_ids, read.adapter, read.cache_salt, read.priority) == ((1, 2), "a", "s", 2)
    assert (read.sampling.seed, read.sampling.max_tokens, read.sampling.min_tokens) == (99, 1, 1)
    for name in ("temperature", "top_k", "stop_token_ids", "logit_bias", "allowed_token_ids", "bad_words", "logprobs"):
        assert getattr(read.sampling, name) == getattr(sampling, name)
    told = TokenLogprobs(logprob=-0.5, rank=1, top=((3, -0.5),))
    output = Output(request_id="x", token_ids=(3,), logprobs=(told,), prompt_logprobs=(None, told), cached_tokens=4)
    assert output_of("x", output_message(output)) == output
    for wrong in ({}, {"sampling": 1}, {**request_message(request, 0), "prompt_ids": None}):
        with pytest.raises(WireError, match="can't read"):
            request_of(wrong)
    with pytest.raises(WireError, match="can't read"):
        output_of("x", {"token_ids": ["?"]})


def test_what_the_command_line_says(tmp_path):
    secret, short = tmp_path / "secret", tmp_path / "short"
    secret.write_text("0123456789abcdef\n")
    short.write_text("0123")
    assert pairing_of(None, None, None) is None
    pairing = pairing_of("9100", "[::1]:9200", secret)
    assert (pairing.token, pairing.listen, pairing.source) == (
        b"0123456789abcdef",
        ("127.0.0.1", 9100),
        ("::1", 9200),
    )
    for arguments, said in [
        ((None, None, secret), "--pages-token-file is for --prefill-listen or --prefill-from"),
        (("9100", None, None), "only with a shared secret: give --pages-token-file FILE to both"),
        (("9100", None, tmp_path / "none"), "none can't be read"),
        (("9100", None, short), "holds 4 bytes, expected at least 16"),
        (("host", None, secret), r"--prefill-listen 'host': expected \[HOST:\]PORT"),
        ((None, "9100", secret), "--prefill-from '9100': expected HOST:PORT"),
        ((None, "a:99999", secret), "--prefill-from 'a:99999'"),
    ]:
        with pytest.raises(UsageError, match=said):
            pairing_of(*arguments)


def test_adapters_of_the_command_line():
    assert {name: str(folder) for name, folder in adapters_of(["a=runs/a", "b=x=y"]).items()} == {
        "a": "runs/a",
        "b": "x=y",
    }
    for texts, said in [
        (["a"], "isn't NAME=FOLDER"),
        (["=x"], "isn't NAME=FOLDER"),
        (["a=x", "a=y"], "is given twice"),
    ]:
        with pytest.raises(UsageError, match=said):
            adapters_of(texts)
