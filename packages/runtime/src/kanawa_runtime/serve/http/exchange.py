"""One HTTP request and its answer: a body within limits, a client that may leave, and has to read in time."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from kanawa.guarded_read import parsed_json

from kanawa_runtime.serve.http.config import ServerConfig
from kanawa_runtime.serve.http.errors import ApiError, invalid
from kanawa_runtime.serve.http.shares import Shares, network_of

#: The name in an ASGI scope of the function that cuts the connection off.
CUT_OFF = "kanawa.cut_off"
#: And of the one that lets a connection wait, which has been refused for want of room.
SLOW_DOWN = "kanawa.slow_down"
_EVENTS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
#: How much of a body that is too long is still read, in body limits and in time.
_DISCARD_FACTOR = 4
_DISCARD_SECONDS = 3.0
_LARGE_BODY_BYTES = 64 * 1024
#: Lists, objects and their fields in a body, far more than any request has: each takes much longer than a number.
MOST_PARTS = 100_000
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_SINGLE_HEADERS = (b"host", b"authorization", b"x-api-key", b"content-type")
_SAFE = {"X-Content-Type-Options": "nosniff"}
#: Elements of a list that are written as JSON at once: some milliseconds.
_SLICE = 256


class ClientGoneError(Exception):
    """The client has closed the connection, or read no data for too long."""


class Exchange:
    """An ASGI request with what the handlers need of it."""

    def __init__(self, scope: Mapping[str, Any], receive: Any, send: Any, config: ServerConfig) -> None:
        self.scope = scope
        self.config = config
        self.status: int | None = None
        #: Who asks: the address (of IPv6 the network), or the digest of the key where keys are asked for.
        self.client: str = network_of((scope.get("client") or ("",))[0])
        #: Its share of the engine, beside those of others.
        self.weight = 1
        #: Whether the body is so long that reading it would hold up small ones.
        self.is_large = False
        #: The room of the server for bodies, in bytes; and what this one's takes of it.
        self.bodies: Shares | None = None
        self._held = 0
        #: How its protocol writes errors.
        self.error_body: Callable[[ApiError], dict[str, Any]] = ApiError.body
        self._receive, self._send = receive, send
        self._headers: dict[str, str] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The request's headers by lower-case name."""
        if self._headers is None:
            self._headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in self.scope["headers"]}
        return self._headers

    @property
    def path_name(self) -> str:
        """The value of the path's parameter `name`."""
        return str(self.scope["path_params"]["name"])

    async def content(self, expected: str = "application/json") -> bytes:
        """Returns the body; raises ApiError 408, 413 or 415."""
        kind = self.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != expected:
            # A page of another site can make a browser send any of the other kinds here, unasked.
            message = f"Content-Type is {kind[:60] or 'missing'}, expected {expected}"
            raise ApiError(415, message, param="Content-Type")
        packed = self.headers.get("content-encoding", "identity").strip().lower()
        if packed != "identity":
            # Unpacked, a small body may fill the memory.
            message = f"Content-Encoding is {packed[:60]}, expected none: send the body as it is"
            raise ApiError(415, message, param="Content-Encoding")
        body = await self._body()
        self.is_large = len(body) >= _LARGE_BODY_BYTES
        return body

    def check_headers(self) -> None:
        """Raises the 400 of a header that comes twice, of which a proxy may have read the other one."""
        names = [name.lower() for name, _ in self.scope["headers"]]
        for name in _SINGLE_HEADERS:
            if names.count(name) > 1:
                title = name.decode().title()
                raise ApiError(400, f"the header {title} comes more than once; send it once", param=title)

    def release_body(self) -> None:
        """Gives the room of the body back, once it isn't needed any more."""
        if self.bodies is not None and self._held:
            self.bodies.give_back(self.client, self._held)
            self._held = 0

    async def _body(self) -> bytes:
        most = self.config.max_body_bytes
        length = self.headers.get("content-length", "0")
        if length.isdigit() and int(length[:18]) > most:
            await self._discard(0)
            raise self._too_long()
        chunks, size = [], 0
        try:
            async with asyncio.timeout(self.config.read_seconds):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    self._hold(size)
                    if size > most:
                        chunks.clear()
                        await self._discard(size)
                        raise self._too_long()
                    if not message.get("more_body", False):
                        return b"".join(chunks)
        except TimeoutError as error:
            text = f"the body didn't come within {self.config.read_seconds:g} s (read_seconds)"
            raise ApiError(408, text, headers={"Connection": "close"}) from error

    async def _discard(self, size: int) -> None:
        """Reads on for a while and discards: a client that is cut off while it sends never sees the answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while size < _DISCARD_FACTOR * self.config.max_body_bytes:
                    message = await self._receive()
                    size += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    def _hold(self, size: int) -> None:
        """Takes room for a body that is no longer short; raises the 429 of a client that has its share of it."""
        more = size - self._held
        if self.bodies is None or size < _LARGE_BODY_BYTES or not more:
            return
        if not self.bodies.has_room(self.client, more):
            message = "this client's bodies have their share of the server's memory; send this one again later"
            headers = {"Retry-After": "1", "Connection": "close"}
            raise ApiError(429, message, code="client_bodies_full", headers=headers)
        self.bodies.take(self.client, more)
        self._held = size

    def _too_long(self) -> ApiError:
        most = self.config.max_body_bytes
        text = f"the body has more than {most:,} bytes (max_body_bytes); send less at once"
        # The rest of it is never read.
        return ApiError(413, text, code="body_too_large", headers={"Connection": "close"})

    @contextlib.asynccontextmanager
    async def while_connected(self) -> AsyncIterator[None]:
        """Cancels the block and raises ClientGoneError once the client is gone."""
        task, watch = asyncio.current_task(), asyncio.ensure_future(self._until_gone())

        def leave(done: "asyncio.Future[None]") -> None:
            if task is not None and not done.cancelled():
                task.cancel()

        watch.add_done_callback(leave)
        try:
            yield
        except asyncio.CancelledError:
            if task is not None and watch.done() and not task.uncancel():
                raise ClientGoneError from None
            raise
        finally:
            watch.remove_done_callback(leave)
            watch.cancel()

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(
        self,
        content: Any,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> None:
        """Sends a whole answer: bytes as they are, anything else as JSON."""
        body = content if isinstance(content, bytes) else _plain(content).encode()
        lengths = {"Content-Type": kind, "Content-Length": str(len(body))}
        await self._start(status, lengths | dict(headers or {}))
        await self._put({"type": "http.response.body", "body": body})

    async def refuse(self, error: ApiError) -> None:
        """Sends an error."""
        await self.answer(self.error_body(error), status=error.status, headers=error.headers)
        slow_down: Callable[[], None] | None = self.scope.get("extensions", {}).get(SLOW_DOWN)
        if error.status == 429 and slow_down is not None:
            slow_down()

    async def events(self, data: AsyncIterator[Any], *, named: bool = False) -> None:
        """Sends server-sent events, the end mark last; an error after the first one is an event too.

        Nothing is sent before the first event, so that an error up to then has its own status. With `named`, an event's
        name is its type, and there is no end mark.
        """
        event = await anext(data, None)
        await self._start(200, _EVENTS)
        try:
            while event is not None:
                await self._put({"type": "http.response.body", "body": _event(event, named), "more_body": True})
                event = await anext(data, None)
        except ApiError as error:
            body = _event(self.error_body(error), named)
            await self._put({"type": "http.response.body", "body": body, "more_body": True})
        await self._put({"type": "http.response.body", "body": b"" if named else b"data: [DONE]\n\n"})

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        named = {**_SAFE, **headers}.items()
        made = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in named]
        await self._put({"type": "http.response.start", "status": status, "headers": made})

    async def _put(self, message: dict[str, Any]) -> None:
        """Sends to the connection, which waits while the client has not read earlier data."""
        try:
            async with asyncio.timeout(self.config.write_seconds):
                await self._send(message)
        except TimeoutError as error:
            # Closing would wait for the client to read the rest.
            cut_off: Callable[[], None] | None = self.scope.get("extensions", {}).get(CUT_OFF)
            if cut_off is not None:
                cut_off()
            raise ClientGoneError from error
        except OSError as error:
            raise ClientGoneError from error


def body_json(content: bytes) -> Any:
    """Returns the JSON that a body holds; raises ApiError 400."""
    if _parts(content) > MOST_PARTS and _parts(_TEXTS.sub(b"", content)) > MOST_PARTS:
        text = f"the body holds more than {MOST_PARTS:,} lists, objects and fields; send fewer at once"
        raise invalid(at="", why=text, code="invalid_json")
    try:
        return parsed_json(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        text = f"the body isn't JSON: {str(error)[:200]}"
        raise invalid(at="", why=text, code="invalid_json") from error


def _event(data: Any, named: bool) -> bytes:
    text = data if isinstance(data, bytes) else _plain(data).encode()
    name = b"event: " + str(data.get("type", "error")).encode() + b"\n" if named else b""
    return name + b"data: " + text + b"\n\n"


def _parts(content: bytes) -> int:
    return sum(content.count(mark) for mark in (b"[", b"{", b":"))


def _refuse_constant(name: str) -> None:
    message = f"{name} is not a JSON number"
    raise ValueError(message)


def json_bytes(content: Any) -> bytes:
    """Returns content as JSON, written in slices: Python's encoder blocks all other threads until it is done."""
    return "".join(_pieces(content)).encode()


def _pieces(content: Any) -> Iterator[str]:
    if isinstance(content, Mapping) and content:
        between = "{"
        for name, value in content.items():
            yield f"{between}{json.dumps(str(name))}:"
            yield from _pieces(value)
            between = ","
        yield "}"
    elif isinstance(content, list | tuple) and len(content) > _SLICE:
        between = "["
        for start in range(0, len(content), _SLICE):
            yield between + _plain(content[start : start + _SLICE])[1:-1]
            between = ","
        yield "]"
    elif isinstance(content, list | tuple) and any(isinstance(one, Mapping) for one in content):
        # Choices of an answer: few, and each may hold long lists.
        between = "["
        for one in content:
            yield between
            yield from _pieces(one)
            between = ","
        yield "]"
    else:
        yield _plain(content)


def _plain(content: Any) -> str:
    # In ASCII: half a surrogate pair, which JSON may hold, has no UTF-8.
    return json.dumps(content, separators=(",", ":"))
