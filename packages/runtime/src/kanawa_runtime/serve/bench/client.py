"""Sends requests over HTTP/1.1 at their times and records each piece: the standard library's asyncio alone."""

import asyncio
import contextlib
import dataclasses
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from kanawa.errors import UsageError

from kanawa_runtime.serve.bench.workload import BenchRequest


@dataclasses.dataclass
class RequestResult:
    """What became of a request; times are of time.perf_counter, `error` is empty where it was result.

    `arrivals` are the times of the pieces that brought text; `output_tokens` is what the server counts, else pieces.
    """

    sent: float
    prompt_tokens: int
    arrivals: list[float] = dataclasses.field(default_factory=list)
    output_tokens: int = 0
    text: str = ""
    ended: float = 0.0
    error: str = ""
    queued: float = 0.0


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Where requests go."""

    host: str
    port: int
    path: str
    is_secure: bool
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, base_url: str, path: str, api_key: str | None = None) -> "Endpoint":
        """Returns the endpoint; raises UsageError where the URL isn't one of HTTP."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            message = f"--base-url {base_url!r}: expected http://HOST:PORT"
            raise UsageError(message)
        secure = parts.scheme == "https"
        headers = (("Authorization", f"Bearer {api_key}"),) if api_key else ()
        port = parts.port or (443 if secure else 80)
        return cls(parts.hostname, port, parts.path.rstrip("/") + path, secure, headers)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Returns a new connection."""
        context = ssl.create_default_context() if self.is_secure else None
        return await asyncio.open_connection(self.host, self.port, ssl=context)

    def head(self, method: str, length: int) -> bytes:
        """Returns the lines before the body."""
        lines = [f"{method} {self.path} HTTP/1.1", f"Host: {self.host}:{self.port}", "Connection: close"]
        lines += ["Content-Type: application/json", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode()


async def stream(endpoint: Endpoint, body: dict[str, Any], result: RequestResult) -> None:
    """Sends the request and records the answer; a failure is in `error`, not raised."""
    data = json.dumps(body).encode()
    result.sent = time.perf_counter()
    try:
        reader, writer = await endpoint.open()
        try:
            writer.write(endpoint.head("POST", len(data)) + data)
            await writer.drain()
            status, pieces = await _answer(reader)
            if status == 200:
                await _follow(pieces, result)
            else:
                text = b"".join([piece async for piece in pieces])[:500].decode(errors="replace")
                result.error = f"HTTP {status}: {text}"
        finally:
            writer.close()
    except (OSError, EOFError, ValueError) as error:
        result.error = f"{type(error).__name__}: {error}"
    result.ended = time.perf_counter()


async def fetch(endpoint: Endpoint) -> Any:
    """Returns the JSON at the endpoint; raises UsageError where there is none."""
    try:
        reader, writer = await endpoint.open()
        try:
            writer.write(endpoint.head("GET", 0))
            status, pieces = await _answer(reader)
            body = b"".join([piece async for piece in pieces])
        finally:
            writer.close()
        if status == 200:
            return json.loads(body)
        problem = f"HTTP {status}: {body[:200].decode(errors='replace')}"
    except (OSError, EOFError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
    message = f"no answer from {endpoint.host}:{endpoint.port}{endpoint.path}: {problem}; is the server running?"
    raise UsageError(message)


async def _answer(reader: asyncio.StreamReader) -> tuple[int, AsyncIterator[bytes]]:
    """Returns the status, and the body's pieces as they come."""
    first = (await reader.readline()).split()
    if len(first) < 2 or not first[0].startswith(b"HTTP/1."):
        message = f"the answer begins with {b' '.join(first)[:80]!r}, not with a line of HTTP/1.1"
        raise ValueError(message)
    headers: dict[bytes, bytes] = {}
    while (line := (await reader.readline()).strip()) != b"":
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip().lower()
    chunked = b"chunked" in headers.get(b"transfer-encoding", b"")
    length = headers.get(b"content-length")
    return int(first[1]), _chunks(reader) if chunked else _rest(reader, None if length is None else int(length))


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readline()).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def _rest(reader: asyncio.StreamReader, length: int | None) -> AsyncIterator[bytes]:
    if length is not None:
        yield await reader.readexactly(length)
        return
    while piece := await reader.read(65536):
        yield piece


async def _follow(pieces: AsyncIterator[bytes], result: RequestResult) -> None:
    """Reads server-sent events; raises EOFError where they end before [DONE]."""
    waiting, done, texts = b"", False, []
    async for piece in pieces:
        now = time.perf_counter()
        *lines, waiting = (waiting + piece).split(b"\n")
        for line in lines:
            data = line.strip().removeprefix(b"data:").strip()
            if not line.startswith(b"data:"):
                continue
            if data == b"[DONE]":
                done = True
                continue
            event = json.loads(data)
            if "error" in event:
                result.error = str(event["error"])[:500]
                continue
            for choice in event.get("choices", ()):
                text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
                # An empty piece may bring a token whose bytes aren't a whole letter yet; the last brings a reason.
                if text or choice.get("finish_reason") is None:
                    result.arrivals.append(now)
                    texts.append(text)
            usage = event.get("usage") or {}
            result.output_tokens = usage.get("completion_tokens", result.output_tokens)
            result.prompt_tokens = usage.get("prompt_tokens", result.prompt_tokens)
    result.text = "".join(texts)
    result.output_tokens = result.output_tokens or len(result.arrivals)
    if not (done or result.error):
        message = "the stream ended before [DONE]"
        raise EOFError(message)


async def send_all(
    endpoint: Endpoint,
    requests: Sequence[BenchRequest],
    times: Sequence[float],
    *,
    body: Callable[[BenchRequest], dict[str, Any]],
    max_concurrency: int | None = None,
) -> tuple[list[RequestResult], float]:
    """Returns the answers in order, and the seconds from the first request to the last answer.

    Each request is sent at its time, however many are still unanswered; `max_concurrency` holds back those beyond it,
    and how long one was held back is in `queued`.
    """
    gate: Any = contextlib.nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    results = [RequestResult(0.0, one.prompt_tokens) for one in requests]
    began = time.perf_counter()

    async def send(one: BenchRequest, at: float, result: RequestResult) -> None:
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        due = time.perf_counter()
        async with gate:
            result.queued = time.perf_counter() - due
            await stream(endpoint, body(one), result)

    await asyncio.gather(*(send(*each) for each in zip(requests, times, results, strict=True)))
    return results, time.perf_counter() - began
