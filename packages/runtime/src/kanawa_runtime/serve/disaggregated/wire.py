"""Frames over a socket: a JSON header and plain bytes, both under a keyed digest; nothing is unpickled.

The listener sends a nonce; every frame carries an HMAC-SHA256 of its sender, its number and its content under a key
made of the shared token and the nonce. A peer without the token can neither ask nor answer, and frames can't be
changed, dropped or replayed. Frames are not encrypted: use a private network.
"""

import dataclasses
import hashlib
import hmac
import json
import secrets
import select
import socket
import struct
import threading
import time
from typing import Any

from kanawa.errors import KanawaError
from kanawa.guarded_read import parsed_json

from kanawa_runtime.serve.engine.request import Output, Request, SamplingParams, TokenLogprobs

_LENGTHS = struct.Struct("!IQ")
_DIGEST_BYTES = 32
_MAGIC = b"kanawa-pages-2\n"
#: A prompt of a million tokens takes seven.
MAX_HEADER_BYTES = 16 * 2**20
MAX_PAYLOAD_BYTES = 2**36
_PIECE_BYTES = 2**20
#: How often a wait checks whether the answer is still wanted.
_LOOK_SECONDS = 0.05


class WireError(KanawaError):
    """The other side doesn't know the token, sent something other than a frame, or is gone."""


class Wire:
    """One connection; used by one thread at a time. `timeout` bounds every wait for the other side."""

    def __init__(self, connection: socket.socket, token: bytes, *, listens: bool, timeout: float) -> None:
        """Exchanges greetings; raises WireError where the other side sends something else."""
        if not token:
            message = "an empty token protects nothing; give both engines the same secret"
            raise WireError(message)
        self._connection, self._listens = connection, listens
        self._sent = self._received = 0
        self._timeout: float = timeout
        self._until: float | None = None
        connection.settimeout(timeout)
        try:
            if listens:
                nonce = secrets.token_bytes(_DIGEST_BYTES)
                connection.sendall(_MAGIC + nonce)
            else:
                greeting = self._exactly(len(_MAGIC) + _DIGEST_BYTES)
                if greeting[: len(_MAGIC)] != _MAGIC:
                    message = "the other side is not an engine that exchanges pages, or another version of one"
                    raise WireError(message)
                nonce = bytes(greeting[len(_MAGIC) :])
        except OSError as error:
            raise _gone(error) from error
        self._key = hmac.digest(token, nonce, "sha256")

    def send(self, header: dict[str, Any], payload: bytes | memoryview = b"") -> None:
        """Sends one frame; raises WireError where the other side is gone."""
        text = json.dumps(header).encode()
        lengths = _LENGTHS.pack(len(text), len(payload))
        digest = self._digest(self._listens, self._sent, lengths + text, payload)
        self._sent += 1
        try:
            self._connection.sendall(lengths + text)
            self._connection.sendall(payload)
            self._connection.sendall(digest)
        except OSError as error:
            raise _gone(error) from error

    def receive(
        self, *, max_payload: int = 0, max_header: int = MAX_HEADER_BYTES, within: float | None = None
    ) -> tuple[dict[str, Any], bytearray]:
        """Returns one frame; raises WireError for one that is too long, or not signed with the token.

        All of it has to come `within` so many seconds: without, a byte at a time may take for ever.
        """
        self._until = None if within is None else time.monotonic() + within
        try:
            lengths = self._exactly(_LENGTHS.size)
            header_bytes, payload_bytes = _LENGTHS.unpack(lengths)
            # Before a byte of it is read: any client could ask for all memory.
            if header_bytes > max_header or payload_bytes > min(max_payload, MAX_PAYLOAD_BYTES):
                message = f"a frame of {header_bytes} and {payload_bytes} bytes came, longer than expected"
                raise WireError(message)
            text, payload = self._exactly(header_bytes), self._exactly(payload_bytes)
            digest = self._exactly(_DIGEST_BYTES)
        except OSError as error:
            raise _gone(error) from error
        finally:
            self._connection.settimeout(self._timeout)
        wanted = self._digest(not self._listens, self._received, bytes(lengths + text), payload)
        if not hmac.compare_digest(digest, wanted):
            message = "a frame came that isn't signed with this engine's token; give both engines the same one"
            raise WireError(message)
        self._received += 1
        try:
            header = parsed_json(bytes(text))
        except ValueError as error:
            message = f"a frame's header is no JSON: {error}"
            raise WireError(message) from error
        if not isinstance(header, dict):
            message = "a frame's header is no object"
            raise WireError(message)
        return header, payload

    def await_frame(self, gone: threading.Event) -> None:
        """Returns once something comes; raises WireError where nothing does in time, or `gone` is set meanwhile."""
        until = time.monotonic() + (self._connection.gettimeout() or 0.0)
        while not gone.is_set() and time.monotonic() < until:
            if self._is_readable(_LOOK_SECONDS):
                return
        message = "the request was cancelled" if gone.is_set() else "the other engine is too slow"
        raise WireError(message)

    def is_gone(self) -> bool:
        """Returns whether the other side has closed, without waiting; nothing is read."""
        try:
            return self._is_readable(0.0) and not self._connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):  # closed meanwhile, by another thread
            return True

    def _is_readable(self, seconds: float) -> bool:
        # Not select.select, which handles at most 1024 files: a busy server has more.
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _exactly(self, count: int) -> bytearray:
        # Grown as it arrives: a length alone must not take memory.
        content = bytearray()
        while len(content) < count:
            if self._until is not None:
                # Zero would make the socket non-blocking.
                self._connection.settimeout(min(self._timeout, max(1e-3, self._until - time.monotonic())))
            piece = self._connection.recv(min(count - len(content), _PIECE_BYTES))
            if not piece:
                message = "the connection was closed"
                raise ConnectionError(message)
            content += piece
        return content

    def _digest(self, from_listener: bool, number: int, start: bytes, payload: Any) -> bytes:
        mac = hmac.new(self._key, digestmod=hashlib.sha256)
        mac.update(struct.pack("!?Q", from_listener, number))
        mac.update(start)
        mac.update(payload)
        return mac.digest()


def _gone(error: OSError) -> WireError:
    return WireError(f"the other engine is gone or too slow: {error}")


_OUTPUT_FIELDS = ("finish_reason", "stop_token_id", "cached_tokens", "error")


def request_message(request: Request, seed: int) -> dict[str, Any]:
    """Returns a request for one new token with its seed, from which both engines draw."""
    sampling = request.sampling
    fields = {f.name: getattr(sampling, f.name) for f in dataclasses.fields(sampling) if f.name != "grammar"}
    fields |= {"seed": seed, "max_tokens": 1, "min_tokens": min(1, sampling.min_tokens)}
    fields["logit_bias"] = [[token, bias] for token, bias in sampling.logit_bias.items()]
    names = ("id", "prompt_ids", "adapter", "cache_salt", "priority", "client")
    left = None if request.deadline is None else request.deadline - time.monotonic()
    return {name: getattr(request, name) for name in names} | {"sampling": fields, "seconds": left}


def request_of(message: dict[str, Any]) -> Request:
    """Returns the request that `request_message` wrote; raises WireError for anything else."""
    try:
        fields = dict(message["sampling"])
        fields["logit_bias"] = {int(token): float(bias) for token, bias in fields["logit_bias"]}
        for name in ("stop_token_ids", "allowed_token_ids"):
            fields[name] = None if fields[name] is None else tuple(int(i) for i in fields[name])
        fields["bad_words"] = tuple(tuple(int(i) for i in word) for word in fields["bad_words"])
        seconds = message["seconds"]
        return Request(
            id=str(message["id"]),
            prompt_ids=tuple(int(i) for i in message["prompt_ids"]),
            sampling=SamplingParams(**fields),
            adapter=None if message["adapter"] is None else str(message["adapter"]),
            cache_salt=str(message["cache_salt"]),
            priority=int(message["priority"]),
            client=str(message.get("client", "")),
            deadline=None if seconds is None else time.monotonic() + float(seconds),
        )
    except (KeyError, TypeError, ValueError) as error:
        text = f"a request came that this version can't read ({type(error).__name__}: {error})"
        raise WireError(text) from error


def output_message(output: Output) -> dict[str, Any]:
    """Returns an output's fields."""
    fields = {name: getattr(output, name) for name in _OUTPUT_FIELDS} | {"token_ids": output.token_ids}
    logprobs = {"logprobs": output.logprobs, "prompt_logprobs": output.prompt_logprobs}
    return fields | {
        name: each and [one and [one.logprob, one.rank, one.top] for one in each] for name, each in logprobs.items()
    }


def output_of(request_id: str, message: dict[str, Any]) -> Output:
    """Returns the output that `output_message` wrote; raises WireError for anything else."""
    try:
        fields = {name: message[name] for name in _OUTPUT_FIELDS}
        return Output(
            request_id=request_id,
            token_ids=tuple(int(i) for i in message["token_ids"]),
            logprobs=_logprobs(message["logprobs"]),
            prompt_logprobs=_logprobs(message["prompt_logprobs"]),
            **fields,
        )
    except (KeyError, TypeError, ValueError) as error:
        text = f"an output came that this version can't read ({type(error).__name__}: {error})"
        raise WireError(text) from error


def _logprobs(listed: Any) -> Any:
    if listed is None:
        return None
    return tuple(
        one and TokenLogprobs(logprob=float(one[0]), rank=int(one[1]), top=tuple((int(i), float(p)) for i, p in one[2]))
        for one in listed
    )
