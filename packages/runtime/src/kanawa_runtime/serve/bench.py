"""Measuring a server from outside: requests that come whether or not earlier ones were answered.

The client is of the standard library's asyncio alone. Results have the keys, meanings and units of `vllm bench serve`.
"""

import asyncio
import contextlib
import dataclasses
import json
import math
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
from kanawa.errors import UsageError, did_you_mean

Kind = Literal["sharegpt", "random", "prefix_repetition", "custom"]
#: Ids that tokenizers reserve for begin, end and the like.
_SPECIAL = 3


@dataclasses.dataclass(frozen=True)
class BenchRequest:
    """One request: token ids or text, how many tokens it is known to have (0: not known), and new ones to make."""

    prompt: list[int] | str
    prompt_tokens: int
    max_tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """Lengths of prompts and outputs.

    "sharegpt": both lognormal, like conversations of people with a model: medians `input_length` and `output_length`,
    deviations of the logarithm `input_sigma` and `output_sigma`, at most eight medians long. "random": uniform within
    `range_ratio` of the lengths. "prefix_repetition": as many prompts for each of `prefixes` beginnings of
    `prefix_length` tokens, each followed by `input_length` of its own. "custom": the lines of `file`, JSON with
    `prompt` (text or ids) and `max_tokens`.
    """

    kind: Kind = "sharegpt"
    count: int = 100
    input_length: int = 100
    output_length: int = 67
    input_sigma: float = 1.0
    output_sigma: float = 0.8
    range_ratio: float = 0.0
    prefixes: int = 10
    prefix_length: int = 256
    vocab_size: int = 256
    file: Path | None = None
    seed: int = 0

    def requests(self) -> list[BenchRequest]:
        """Returns the requests in order; raises UsageError naming a line or a size that can't be."""
        if self.kind == "custom":
            return self._of_file()
        self._check()
        rng = np.random.default_rng(self.seed)
        if self.kind == "sharegpt":
            inputs = _lognormal(rng, self.input_length, self.input_sigma, self.count)
            outputs = _lognormal(rng, self.output_length, self.output_sigma, self.count)
        else:
            spread = self.range_ratio if self.kind == "random" else 0.0
            inputs = _uniform(rng, self.input_length, spread, self.count)
            outputs = _uniform(rng, self.output_length, spread, self.count)
        beginnings = [self._ids(rng, self.prefix_length) for _ in range(self.prefixes)]
        requests = []
        for index, (length, new) in enumerate(zip(inputs, outputs, strict=True)):
            prompt = self._ids(rng, int(length))
            if self.kind == "prefix_repetition":
                prompt = beginnings[index % self.prefixes] + prompt
            requests.append(BenchRequest(prompt, len(prompt), int(new)))
        return requests

    def _check(self) -> None:
        sizes = ("count", "input_length", "output_length", "prefixes", "prefix_length")
        broken = [f"{name.replace('_', '-')} is {getattr(self, name)}" for name in sizes if getattr(self, name) < 1]
        if broken:
            message = f"a workload has at least one of everything: {', '.join(broken)}"
            raise UsageError(message)
        if self.vocab_size <= _SPECIAL:
            message = f"vocab-size is {self.vocab_size}; expected over {_SPECIAL}: lower ids may be special"
            raise UsageError(message)
        if not 0.0 <= self.range_ratio < 1.0:
            message = f"range-ratio is {self.range_ratio:g}; expected at least 0 and less than 1"
            raise UsageError(message)

    def _ids(self, rng: np.random.Generator, length: int) -> list[int]:
        ids: list[int] = rng.integers(_SPECIAL, self.vocab_size, length).tolist()
        return ids

    def _of_file(self) -> list[BenchRequest]:
        if self.file is None:
            message = "the dataset custom needs --dataset-path FILE, a JSON object a line with prompt and max_tokens"
            raise UsageError(message)
        requests: list[BenchRequest] = []
        with self.file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip() and len(requests) < self.count:
                    requests.append(self._of_line(line, f"{self.file}:{number}"))
        if not requests:
            message = f"{self.file} holds no requests; expected a JSON object a line with prompt and max_tokens"
            raise UsageError(message)
        return requests

    def _of_line(self, line: str, where: str) -> BenchRequest:
        try:
            record = json.loads(line)
        except ValueError as error:
            message = f"{where}: no JSON ({error}); expected an object with prompt and max_tokens"
            raise UsageError(message) from None
        prompt = record.get("prompt") if isinstance(record, dict) else None
        is_ids = isinstance(prompt, list) and all(type(token) is int for token in prompt)
        if not (prompt and (isinstance(prompt, str) or is_ids)):
            near = did_you_mean("prompt", record) if isinstance(record, dict) else ""
            message = f"{where}: expected prompt, a text or a list of token ids{near}"
            raise UsageError(message)
        most = record.get("max_tokens", self.output_length)
        if type(most) is not int or most < 1:
            message = f"{where}: max_tokens is {most!r}, expected a whole number of at least 1"
            raise UsageError(message)
        return BenchRequest(prompt, len(prompt) if is_ids else 0, most)


def arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Returns when each request is sent, in seconds from the first; `rate` a second, all at once where it is inf.

    Intervals are gamma distributed with shape `burstiness`: 1 is a Poisson process, less comes in bursts, inf is even.
    """
    if rate <= 0 or burstiness <= 0:
        message = f"request-rate ({rate:g}) and burstiness ({burstiness:g}) have to be more than 0; inf is allowed"
        raise UsageError(message)
    if math.isinf(rate):
        return [0.0] * count
    if math.isinf(burstiness):
        return [index / rate for index in range(count)]
    # Its own stream: another rate must not change the requests.
    rng = np.random.default_rng((seed, 1))
    gaps = rng.gamma(burstiness, 1.0 / (rate * burstiness), count - 1)
    return [0.0, *np.cumsum(gaps).tolist()]


def _lognormal(rng: np.random.Generator, median: int, sigma: float, count: int) -> Any:
    drawn = np.exp(rng.normal(math.log(median), sigma, count))
    return np.clip(np.rint(drawn), 1, 8 * median).astype(int)


def _uniform(rng: np.random.Generator, length: int, ratio: float, count: int) -> Any:
    low, high = math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio))
    return rng.integers(max(1, low), high + 1, count)


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
    api_key: str | None = None

    @classmethod
    def of(cls, base_url: str, path: str, api_key: str | None = None) -> "Endpoint":
        """Returns the endpoint; raises UsageError where the URL isn't one of HTTP."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            message = f"--base-url {base_url!r}: expected http://HOST:PORT"
            raise UsageError(message)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        return cls(parts.hostname, port, parts.path.rstrip("/") + path, secure, api_key)

    @contextlib.asynccontextmanager
    async def answered(self, method: str, body: bytes = b"") -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        """Sends a request on a new connection; yields the answer's status and the pieces of its body."""
        lines = [f"{method} {self.path} HTTP/1.1", f"Host: {self.host}:{self.port}", "Connection: close"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += [f"Authorization: Bearer {self.api_key}"] if self.api_key else []
        context = ssl.create_default_context() if self.is_secure else None
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=context)
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()
            yield await _answer(reader)
        finally:
            writer.close()


async def stream(endpoint: Endpoint, body: dict[str, Any], result: RequestResult) -> None:
    """Sends the request and records the answer; a failure is in `error`, not raised."""
    data = json.dumps(body).encode()
    result.sent = time.perf_counter()
    try:
        async with endpoint.answered("POST", data) as (status, pieces):
            if status == 200:
                await _follow(pieces, result)
            else:
                text = b"".join([piece async for piece in pieces])[:500].decode(errors="replace")
                result.error = f"HTTP {status}: {text}"
    except (OSError, EOFError, ValueError) as error:
        result.error = f"{type(error).__name__}: {error}"
    result.ended = time.perf_counter()


async def fetch(endpoint: Endpoint) -> Any:
    """Returns the JSON at the endpoint; raises UsageError where there is none."""
    try:
        async with endpoint.answered("GET") as (status, pieces):
            body = b"".join([piece async for piece in pieces])
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


#: Keys of every request or token that are written only where details are wanted; `vllm bench serve` drops the same.
DETAILED = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors")
METRICS = ("ttft", "tpot", "itl", "e2el")


def summarize(
    answers: Sequence[RequestResult],
    seconds: float,
    *,
    metrics: Sequence[str] = ("ttft", "tpot", "itl"),
    percentiles: Sequence[float] = (99.0,),
    goal: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Returns the result of a run of `seconds`; `goal` is what counts as good: milliseconds of ttft, tpot and e2el.

    ttft is from sending to the first piece, itl the gaps between pieces, tpot a request's time after the first piece by
    its other tokens, e2el all of it; in milliseconds as mean, median, std and percentiles.
    """
    good = [a for a in answers if not a.error and a.arrivals]
    values: dict[str, list[float]] = {name: [] for name in METRICS}
    met = 0
    for a in good:
        ttft, e2el = a.arrivals[0] - a.sent, a.arrivals[-1] - a.sent
        tpot = (a.arrivals[-1] - a.arrivals[0]) / (a.output_tokens - 1) if a.output_tokens > 1 else 0.0
        values["ttft"].append(ttft)
        values["e2el"].append(e2el)
        values["itl"] += np.diff(a.arrivals).tolist()
        if a.output_tokens > 1:
            values["tpot"].append(tpot)
        own = {"ttft": ttft, "tpot": tpot, "e2el": e2el}
        met += goal is not None and all(own[name] * 1e3 <= limit for name, limit in goal.items())
    prompts, made = sum(a.prompt_tokens for a in good), sum(a.output_tokens for a in good)
    most_tokens, most_requests = _busiest(good)
    result: dict[str, Any] = {
        "duration": seconds,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": prompts,
        "total_output_tokens": made,
        "request_throughput": len(good) / seconds,
        "request_goodput": None if goal is None else met / seconds,
        "output_throughput": made / seconds,
        "total_token_throughput": (prompts + made) / seconds,
        "input_lens": [a.prompt_tokens for a in answers],
        "output_lens": [a.output_tokens for a in answers],
        "ttfts": [a.arrivals[0] - a.sent if a.arrivals else 0.0 for a in answers],
        "itls": [np.diff(a.arrivals).tolist() for a in answers],
        "latencies": [(a.arrivals[-1] if a.arrivals else a.ended) - a.sent for a in answers],
        "start_times": [a.sent for a in answers],
        "queue_times": [a.queued for a in answers],
        "generated_texts": [a.text for a in answers],
        "errors": [a.error for a in answers],
        "max_output_tokens_per_s": most_tokens,
        "max_concurrent_requests": most_requests,
        "rtfx": 0.0,
    }
    for name in metrics:
        result |= _statistics(name, values[name], percentiles)
    return result


def _statistics(name: str, values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    in_ms = np.asarray(values or [0.0]) * 1e3
    values_ms = {f"mean_{name}_ms": in_ms.mean(), f"median_{name}_ms": np.median(in_ms), f"std_{name}_ms": in_ms.std()}
    values_ms |= {f"p{p:g}_{name}_ms": np.percentile(in_ms, p) for p in percentiles}
    return {key: float(value) for key, value in values_ms.items()}


def _busiest(good: Sequence[RequestResult]) -> tuple[float, int]:
    """Returns the most tokens that came, and the most running requests, in one second of the run."""
    if not good:
        return 0.0, 0
    start = min(a.sent for a in good)
    tokens: np.ndarray = np.zeros(int(max(a.ended for a in good) - start) + 1)
    requests = np.zeros_like(tokens)
    for a in good:
        each = a.output_tokens / len(a.arrivals)
        for at in a.arrivals:
            tokens[int(at - start)] += each
        requests[int(a.sent - start) : int(a.ended - start) + 1] += 1
    return float(tokens.max()), int(requests.max())
