"""Limits of connections: slow starts, slow readers, and too many of them, for which uvicorn would wait for ever."""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from kanawa_runtime.serve.http.config import ServerConfig
from kanawa_runtime.serve.http.exchange import CUT_OFF, SLOW_DOWN
from kanawa_runtime.serve.http.shares import Shares, network_of

#: More than any client sends; without a bound, headers that never end would fill the memory.
_MAX_HEADER_BYTES = 64 * 1024
_LONG_HEADERS = f"its headers have more than {_MAX_HEADER_BYTES} bytes"
#: Requests sent ahead of an answer, and bytes of the last one: each takes memory until its turn comes.
_MAX_AHEAD = 16
_MAX_AHEAD_BYTES = 64 * 1024
#: How long a refused connection isn't read at most, and how much longer by the square of its address's connections:
#: 0.18 s of 160, 0.85 s of 400; Retry-After says 1 s at least.
_SLOW_SECONDS, _SLOW_SECONDS_SQUARED, _MOST_SLOW_SECONDS = 0.05, 5e-6, 1.0
#: What a client has to read of an answer in `write_seconds`.
_MIN_TAKEN_BYTES = 16 * 1024
_FULL = (
    b'{"error":{"message":"there are as many connections as the server takes (max_connections)",'
    b'"type":"service_unavailable_error","param":null,"code":"too_many_connections"}}'
)
_REFUSED = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(_FULL)
) + _FULL


class LimitedProtocol(HttpToolsProtocol):
    """Ends a connection whose client doesn't send or read in time; the application can cut it off, too."""

    limits: ServerConfig
    shares: Shares
    #: Counts what never becomes a request, by status.
    refused: Callable[[int], None]
    _waits_for_headers: asyncio.TimerHandle | None = None
    _waits_for_reader: asyncio.TimerHandle | None = None
    #: What has come before the headers were complete, and what of them has been read.
    _header_bytes = _read_bytes = 0
    _address: str | None = None
    _complaint = "this is not an HTTP request"
    #: Requests without a whole answer; uvicorn itself knows of the newest alone.
    _unanswered: tuple[RequestResponseCycle, ...] = ()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuses one connection too many, and waits for the headers of any other."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        address = network_of(str(peer[0])) if isinstance(peer, tuple) else ""
        if not self.shares.has_room(address):
            self.refused(503)
            transport.write(_REFUSED)
            self._close()
            return
        self._address = address
        self.shares.take(address)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Marks every request of the connection without a whole answer as disconnected."""
        self._have_headers()
        if self._address is not None:
            self.shares.give_back(self._address)
        if self._waits_for_reader is not None:
            self._waits_for_reader.cancel()
        for cycle in self._unanswered:
            # Of several sent at once the first one runs, and would continue for a client that has left.
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bounds what comes before the headers are complete."""
        # Of the next request on the connection; in between, uvicorn's own keep-alive timeout applies.
        if self.cycle is not None and self.cycle.response_complete:
            self._wait_for_headers()
        super().data_received(data)
        if self._waits_for_headers is not None and not self.transport.is_closing():
            self._header_bytes += len(data)
            if self._header_bytes > _MAX_HEADER_BYTES:
                self._complaint = _LONG_HEADERS
                self.send_400_response(self._complaint)

    def on_url(self, url: bytes) -> None:
        """Bounds a path that comes in one piece with all else."""
        self._count_header(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Bounds headers that come in one piece with all else."""
        self._count_header(len(name) + len(value))
        super().on_header(name, value)

    def _count_header(self, count: int) -> None:
        self._read_bytes += count
        if self._read_bytes > _MAX_HEADER_BYTES:
            self._complaint = _LONG_HEADERS
            # Only an error makes the parser leave the rest of what came alone.
            raise ValueError(self._complaint)

    def on_headers_complete(self) -> None:
        """Begins a request, or queues it until the one before it is answered."""
        self._have_headers()
        self.scope["extensions"] = {CUT_OFF: self.transport.abort, SLOW_DOWN: self._slow_down}  # type: ignore[dict-item]
        super().on_headers_complete()
        self._unanswered = (*(one for one in self._unanswered if not one.response_complete), self.cycle)
        if self.scope["http_version"] == "1.0":
            # Which knows no chunks: the end of the connection is the end of an answer of unknown length.
            self.cycle.chunked_encoding = False
            self.cycle.expected_content_length = _AnyLength()
        if self.pipeline:
            # Uvicorn stops reading there, and a client that isn't read from can't be seen to leave.
            self.flow.resume_reading()
            self._check_ahead()

    def on_body(self, body: bytes) -> None:
        """Bounds the body of a queued request."""
        super().on_body(body)
        if self.pipeline:
            self._check_ahead()

    def on_response_complete(self) -> None:
        """Watches a client that has not read the answer."""
        super().on_response_complete()
        self._wait_for_reader()

    def send_400_response(self, msg: str) -> None:
        """Answers what isn't HTTP in the same shape as all else."""
        self.refused(400)
        if any(one.response_started and not one.response_complete for one in self._unanswered):
            # In the middle of another answer it would be taken for a part of it.
            self.transport.abort()
            return
        error = {"message": self._complaint, "type": "invalid_request_error"}
        body = json.dumps({"error": error | {"param": None, "code": "invalid_http"}}).encode()
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        self._close()

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection."""
        super().timeout_keep_alive_handler()
        self._wait_for_reader()

    def _check_ahead(self) -> None:
        if len(self.pipeline) > _MAX_AHEAD or len(self.cycle.body) > _MAX_AHEAD_BYTES:
            self._complaint = f"it sends more than {_MAX_AHEAD} requests, or a long one, ahead of an answer"
            # Only an error makes the parser leave the rest of what came alone.
            raise ValueError(self._complaint)

    def _slow_down(self) -> None:
        """Reads nothing for a moment after a refusal, longer the more connections the address has.

        Hundreds of connections that ask again at once would take all of the loop's time by being refused.
        """
        held = self.shares.held(self._address or "")
        most = min(_MOST_SLOW_SECONDS, _SLOW_SECONDS + _SLOW_SECONDS_SQUARED * held**2)
        self.flow.pause_reading()
        # By chance, so that they don't come back together.
        self.loop.call_later(random.uniform(most / 2, most), self._go_on)

    def _go_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _close(self) -> None:
        self.transport.close()
        self._wait_for_reader()

    def _wait_for_reader(self) -> None:
        """Watches a client that has not read all of an answer: closing waits for it without a limit."""
        if self._waits_for_reader is None and self.transport.get_write_buffer_size():
            left = self.transport.get_write_buffer_size()
            self._waits_for_reader = self.loop.call_later(self.limits.write_seconds, self._check_reader, left)

    def _check_reader(self, before: int) -> None:
        self._waits_for_reader = None
        if before - self.transport.get_write_buffer_size() >= min(before, _MIN_TAKEN_BYTES):
            self._wait_for_reader()
        else:
            self.transport.abort()

    def _wait_for_headers(self) -> None:
        if self._waits_for_headers is None:
            self._waits_for_headers = self.loop.call_later(self.limits.read_seconds, self.transport.abort)

    def _have_headers(self) -> None:
        self._read_bytes = 0
        if self._waits_for_headers is not None:
            self._waits_for_headers.cancel()
            self._waits_for_headers = None
            self._header_bytes = 0


def protocol_for(config: ServerConfig, refused: Callable[[int], None]) -> type[HttpToolsProtocol]:
    """Returns uvicorn's protocol with the limits of a config; `refused` counts what never becomes a request."""
    own = {"limits": config, "shares": Shares(config.max_connections), "refused": staticmethod(refused)}
    return type("ProtocolOfServer", (LimitedProtocol,), own)


class _AnyLength(int):
    """How much is expected of an answer that ends with its connection: uvicorn counts down to 0, and compares."""

    def __lt__(self, other: object) -> bool:
        return False

    def __sub__(self, other: object) -> "_AnyLength":
        return self


def uvicorn_options(config: ServerConfig, refused: Callable[[int], None]) -> dict[str, Any]:
    """Returns what uvicorn's own config takes of ours."""
    return {
        "http": protocol_for(config, refused),
        "ws": "none",
        "lifespan": "off",
        "access_log": False,
        "log_config": None,
        "server_header": False,
        "timeout_keep_alive": config.keep_alive_seconds,
        "timeout_graceful_shutdown": 1,
    }
