"""Connections that begin slowly, never end, or are too many: uvicorn itself waits for headers as long as it takes."""

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kanawa_runtime.serve.http.exchange import CUT_OFF
from kanawa_runtime.serve.http.limits import ServerConfig

#: More than any client sends; without a bound, headers that never end would fill the memory.
_MOST_HEADER_BYTES = 64 * 1024
_FULL = (
    b'{"error":{"message":"there are as many connections as the server takes (max_connections)",'
    b'"type":"service_unavailable_error","param":null,"code":"too_many_connections"}}'
)
_REFUSED = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(_FULL)
) + _FULL


def protocol_for(config: ServerConfig) -> type[HttpToolsProtocol]:
    """Returns uvicorn's protocol with the limits of a config."""

    class LimitedProtocol(HttpToolsProtocol):
        """Ends a connection whose headers aren't there in time, and gives the application what cuts it off."""

        _waits_for_headers: asyncio.TimerHandle | None = None
        _header_bytes = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > config.max_connections:
                transport.write(_REFUSED)
                transport.close()
                return
            self._wait_for_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._have_headers()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            # Of the next request on a kept connection; in between, uvicorn's own time for keeping it counts.
            if self.cycle is not None and self.cycle.response_complete:
                self._wait_for_headers()
            super().data_received(data)
            if self._waits_for_headers is not None and not self.transport.is_closing():
                self._header_bytes += len(data)
                if self._header_bytes > _MOST_HEADER_BYTES:
                    self.send_400_response("headers")

        def on_headers_complete(self) -> None:
            self._have_headers()
            self.scope["extensions"] = {CUT_OFF: self.transport.abort}  # type: ignore[dict-item]
            super().on_headers_complete()

        def send_400_response(self, msg: str) -> None:
            # What isn't HTTP gets the same shape of error as all else.
            long = f"its headers have more than {_MOST_HEADER_BYTES} bytes"
            told = {"message": long if msg == "headers" else "this is no HTTP request", "type": "invalid_request_error"}
            body = json.dumps({"error": told | {"param": None, "code": "invalid_http"}}).encode()
            head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            self.transport.close()

        def _wait_for_headers(self) -> None:
            if self._waits_for_headers is None:
                self._waits_for_headers = self.loop.call_later(config.read_seconds, self.transport.abort)

        def _have_headers(self) -> None:
            if self._waits_for_headers is not None:
                self._waits_for_headers.cancel()
                self._waits_for_headers = None
                self._header_bytes = 0

    return LimitedProtocol


def uvicorn_options(config: ServerConfig) -> dict[str, Any]:
    """Returns what uvicorn's own config takes of ours."""
    return {
        "http": protocol_for(config),
        "ws": "none",
        "lifespan": "off",
        "access_log": False,
        "log_config": None,
        "server_header": False,
        "timeout_keep_alive": config.keep_alive_seconds,
        "timeout_graceful_shutdown": 1,
    }
