"""How a decoding engine has prompts prefilled by another one, over TCP."""

import socket
import threading
from typing import Any

import numpy as np
from kanawa.errors import UsageError

from kanawa_runtime.serve.disaggregated.messages import output_of, request_message
from kanawa_runtime.serve.disaggregated.wire import Wire, WireError
from kanawa_runtime.serve.engine.page_transfer import PageShapes
from kanawa_runtime.serve.engine.request import RemotePrefill, Request


class TcpConnector:
    """A connection a prompt: the request is sent, the first token and the pages come back, and a receipt ends it.

    May be used by several threads at once.
    """

    def __init__(self, host: str, port: int, token: bytes, *, timeout: float = 60.0) -> None:
        self._address, self._token, self._timeout = (host, port), token, timeout

    def check_layout(self, layout: str, adapter: str | None = None) -> None:
        """Raises WireError where no engine listens, UsageError where its pages have another layout."""
        where = f"the server at {self._address[0]}:{self._address[1]} can't prefill prompts for this one"
        with self._connected() as connection:
            wire = Wire(connection, self._token, listens=False, timeout=self._timeout)
            try:
                wire.send({"hello": True})
                wire.send({"layout": layout, "adapter": adapter})
                header, _ = wire.receive()
            except WireError as error:
                # It has greeted, so it takes connections: it rejects this one's signature.
                message = f"{where}: it hung up ({error}); give both the same --pages-token-file"
                raise UsageError(message) from error
        if "refused" in header:
            message = (
                f"{where}: {str(header['refused'])[:500]}; start both with the same run, step, adapters and engine "
                "options"
            )
            raise UsageError(message)

    def prefill(
        self, request: Request, seed: int, layout: str, shapes: PageShapes, gone: threading.Event
    ) -> RemotePrefill:
        """Returns the other engine's first output and, where there is more to come, its pages.

        The other engine's pages are free once this returns or raises. Stops when `gone` is set. Raises WireError where
        the other engine can't be reached, or doesn't answer.
        """
        # Closing the connection frees the pages there, whatever happens here.
        with self._connected() as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire = Wire(connection, self._token, listens=False, timeout=self._timeout)
            # First a few bytes that prove the token: before them the other engine reads nothing long.
            wire.send({"hello": True})
            wire.send({"layout": layout, "request": request_message(request, seed)})
            wire.await_frame(gone)
            header, _ = wire.receive()
            if "refused" in header:
                message = f"the other engine refused: {str(header['refused'])[:500]}"
                raise WireError(message)
            first = output_of(request.id, header.get("first") or {})
            arrays = [_receive_array(wire, header.get("pages"), *one) for one in shapes] if header.get("pages") else []
            wire.send({"received": True})
        return RemotePrefill(first, arrays, layout)

    def _connected(self) -> socket.socket:
        try:
            return socket.create_connection(self._address, timeout=min(self._timeout, 5.0))
        except OSError as error:
            message = f"no engine can be reached at {self._address[0]}:{self._address[1]}: {error}"
            raise WireError(message) from error


def _receive_array(wire: Wire, pages: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if not isinstance(pages, int) or not 0 < pages < 2**31:
        message = f"{pages!r} pages were announced"
        raise WireError(message)
    size = pages * int(np.prod(shape)) * dtype.itemsize
    _, payload = wire.receive(max_payload=size)
    if len(payload) != size:
        message = f"an array of {len(payload)} bytes came, expected {size}"
        raise WireError(message)
    return np.frombuffer(payload, dtype).reshape(pages, *shape)
