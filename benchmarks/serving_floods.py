"""One client's time to first token beside floods by the key of another, as multiples of the unloaded median.

`--cases` takes some of the floods only, `--seconds` is for each. The flooding processes have a lower priority, since
they share the server's machine here. Prints one JSON object; ends with 1 where a first token took longer than 3 times.
"""

import argparse
import asyncio
import collections
import json
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

from serving_overload import write_run

HEAD = (
    "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer {key}\r\n"
    "Content-Length: {length}\r\n\r\n"
)
MOST_TIMES = 3.0
SIZES = {"max_sequences": 8, "max_queued": 64, "max_length": 2048}
OTHER = {"prompt": "abcdefgh", "max_tokens": 4, "stream": True}


class Flood(NamedTuple):
    """How many connections ask what, all the time, and for how long one waits that was refused."""

    connections: int
    path: str
    body: dict[str, Any]
    pause: float = 0.0


SMALL = {"prompt": "x" * 30, "max_tokens": 60, "stream": True}
FLOODS = {
    "64-small": Flood(64, "/v1/completions", SMALL),
    "400-small": Flood(400, "/v1/completions", SMALL),
    "400-that-wait": Flood(400, "/v1/completions", SMALL, 0.2),
    "30-of-8-each": Flood(30, "/v1/completions", SMALL | {"max_tokens": 200, "n": 8}),
    "16-long-prompts": Flood(16, "/v1/completions", SMALL | {"prompt": "x" * 1500, "max_tokens": 4}),
    "4-of-2.5M-ids": Flood(4, "/v1/completions", {"prompt": [7] * 2_500_000, "max_tokens": 4}),
    "4-tokenize-1M": Flood(4, "/tokenize", {"prompt": "hello wor " * 100_000}),
    "4-detokenize-1M": Flood(4, "/detokenize", {"tokens": [70] * 1_000_000}),
}
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def ask(port: int, key: str, path: str, content: bytes, kept: Connection | None) -> tuple[int, float, Connection]:
    """Returns the status, the seconds until the first token or the end of a short answer, and the connection."""
    reader, writer = kept or await asyncio.open_connection("127.0.0.1", port)
    began = time.monotonic()
    writer.write(HEAD.format(path=path, key=key, length=len(content)).encode() + content)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"content-length:" in head:
        await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
        return int(head[9:12]), time.monotonic() - began, (reader, writer)
    await reader.readline()
    await reader.readline()
    first = time.monotonic() - began
    await reader.readuntil(b"\r\n0\r\n\r\n")
    return int(head[9:12]), first, (reader, writer)


def flood(port: int, name: str, seconds: float, answers: Any) -> None:
    """Asks from all connections of a flood for so long; puts the number of each status into `answers`."""
    os.nice(5)
    case = FLOODS[name]
    content, until = json.dumps(case.body).encode(), time.monotonic() + seconds
    statuses: collections.Counter[str] = collections.Counter()

    async def one() -> None:
        kept = None
        while time.monotonic() < until:
            try:
                status, _, kept = await ask(port, "one", case.path, content, kept)
            except (OSError, asyncio.IncompleteReadError):
                kept, status = None, 0
                await asyncio.sleep(0.05)
            statuses[str(status or "lost")] += 1
            if status == 429:
                await asyncio.sleep(case.pause)

    async def every() -> None:
        tasks = [asyncio.ensure_future(one()) for _ in range(case.connections)]
        await asyncio.wait(tasks, timeout=seconds + 3)
        for task in tasks:
            task.cancel()

    asyncio.run(every())
    answers.put(dict(statuses))


def first_tokens(port: int, seconds: float) -> list[float]:
    """Returns the sorted times to first token of a client with a key of its own; raises where one isn't answered."""

    async def run() -> list[float]:
        times, kept, until = [], None, time.monotonic() + seconds
        while time.monotonic() < until:
            asked = ask(port, "other", "/v1/completions", json.dumps(OTHER).encode(), kept)
            status, first, kept = await asyncio.wait_for(asked, 60)
            if status != 200:
                message = f"the other client was answered {status}"
                raise SystemExit(message)
            times.append(first)
            await asyncio.sleep(0.02)
        return sorted(times)

    return asyncio.run(run())


def measured(port: int, seconds: float, cases: list[str]) -> dict[str, Any]:
    """Returns the unloaded median, and beside each flood the median and the worst as its multiples."""
    first_tokens(port, 2)
    unloaded = first_tokens(port, seconds)
    median = statistics.median(unloaded)
    found: dict[str, Any] = {"unloaded_median_seconds": median, "unloaded_worst_times": unloaded[-1] / median}
    processes = multiprocessing.get_context("spawn")
    for name in cases:
        answers = processes.Queue()
        other = processes.Process(target=flood, args=(port, name, seconds + 1.5, answers))
        other.start()
        time.sleep(1.5)
        times = first_tokens(port, seconds)
        found[name] = {"median_times": statistics.median(times) / median, "worst_times": times[-1] / median}
        found[name] |= {"others_requests": len(times), "floods_answers": answers.get(timeout=60)}
        other.join()
    return found


def main() -> int:
    """Starts a server, measures, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--cases", nargs="+", choices=FLOODS, default=list(FLOODS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write_run(folder / "run")
        (folder / "keys").write_text("one\nother\n")
        options = [word for name, size in SIZES.items() for word in ("--set", f"engine.{name}={size}")]
        command = [sys.executable, "-m", "kanawa.cli", "serve", str(folder / "run"), "--port", "0", "--json", *options]
        command += ["--api-key-file", str(folder / "keys")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                port = int(json.loads(server.stdout.readline())["url"].rpartition(":")[2])
                found = measured(port, given.seconds, given.cases)
            finally:
                server.terminate()
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return int(any(found[name]["worst_times"] > MOST_TIMES for name in given.cases))


if __name__ == "__main__":
    sys.exit(main())
