"""Ten times more clients than a server takes, for five minutes: memory, refusals, times to first token, and losses.

The measure is the same server with as many clients as it takes. `--seconds`, `--baseline-seconds`, `--clients` and
`--run` shorten it or take another model; without a run a small one of random weights is written. Prints one JSON
object; ends with 1 where something was lost, grew, or took too long.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import multiprocessing
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

PLACES, QUEUED, PROCESSES = 8, 8, 2
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
MOST_REFUSAL_SECONDS, MOST_TIMES_BASELINE, MOST_GROWTH_BYTES = 0.1, 2.0, 32 * 2**20


def write_run(folder: pathlib.Path) -> None:
    """Writes a Llama of four layers, width 256, that has learned nothing."""
    import jax
    import kanawa as kn
    from kanawa.arrays.tree import flatten_paths
    from kanawa.contracts import StoredModel
    from kanawa_layers.recipes.llama import llama
    from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
    from kanawa_runtime.runs.model_store import RunStore

    config = llama(num_layers=4, input_dim=256, num_heads=4, num_kv_heads=2, hidden_dim=512, vocab_size=320, tied=True)
    model = config.build()
    params = flatten_paths(jax.jit(lambda key: kn.initialize(model, key))(jax.random.key(0)))
    files = ByteTokenizer.Config().build().folder_files()
    RunStore().save(folder, StoredModel(config, params, {}, files, {}))


class Server:
    """A server's process."""

    def __init__(self, run: str) -> None:
        """Starts it and waits until it is ready."""
        sizes = {"max_sequences": PLACES, "max_queued": QUEUED, "max_length": 256, "batch_sizes": [PLACES]}
        options = [word for name, size in sizes.items() for word in ("--set", f"engine.{name}={size}")]
        program = str(pathlib.Path(sys.executable).with_name("kanawa"))
        command = [program, "serve", run, "--port", "0", "--json", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.said = json.loads(self.process.stdout.readline())
        self.host, self.port = self.said["url"].removeprefix("http://").split(":")

    @property
    def memory_bytes(self) -> int:
        """What it holds in memory."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) * 1024

    def connect(self) -> http.client.HTTPConnection:
        """Returns a connection."""
        return http.client.HTTPConnection(self.host, int(self.port), timeout=120)

    def metric(self, name: str) -> float:
        """Returns a number of /metrics."""
        connection = self.connect()
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


async def ask(host: str, port: int, seconds: float, number: int) -> tuple[list[float], list[float], int]:
    """Sends one request after the other; returns times of refusals, times to first tokens, and how many were lost."""
    until, chance, refused, firsts, lost = time.monotonic() + seconds, random.Random(number), [], [], 0
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    while time.monotonic() < until:
        body = {"prompt": "x" * chance.randrange(1, 60), "max_tokens": chance.randrange(4, 60), "stream": True}
        content = json.dumps(body).encode()
        head = f"{HEAD}Content-Length: {len(content)}\r\n\r\n".encode()
        try:
            connection = connection or await asyncio.open_connection(host, port)
            reader, writer = connection
            began = time.monotonic()
            writer.write(head + content)
            told = (await reader.readuntil(b"\r\n\r\n")).lower()
            if told.startswith(b"http/1.1 429"):
                refused.append(time.monotonic() - began)
                await reader.readexactly(int(told.partition(b"content-length:")[2].split()[0]))
                # Sooner than Retry-After says: this is the client that doesn't listen.
                await asyncio.sleep(0.2)
                continue
            first = await reader.readline() + await reader.readline()
            firsts.append(time.monotonic() - began)
            rest = first + await reader.readuntil(b"\r\n0\r\n\r\n")
            lost += not (told.startswith(b"http/1.1 200") and b"data: [DONE]" in rest and b'"finish_reason":"' in rest)
        except (OSError, asyncio.IncompleteReadError):
            lost += 1
            connection = None
    if connection is not None:
        connection[1].close()
    return refused, firsts, lost


def crowd(host: str, port: int, seconds: float, numbers: range) -> list[tuple[list[float], list[float], int]]:
    """Returns what some of the clients saw; a process of its own, so that they wait for nobody but the server."""

    async def everybody() -> list[tuple[list[float], list[float], int]]:
        return list(await asyncio.gather(*(ask(host, port, seconds, number) for number in numbers)))

    return asyncio.run(everybody())


def load(server: Server, clients: int, seconds: float) -> dict[str, float]:
    """Returns what many clients saw."""
    shares = [range(number, clients, PROCESSES) for number in range(PROCESSES)]
    started = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(PROCESSES, mp_context=started) as pool:
        asked = [pool.submit(crowd, server.host, int(server.port), seconds, share) for share in shares]
        heard = [one for share in asked for one in share.result()]
    refused = sorted(time for one in heard for time in one[0])
    firsts = sorted(time for one in heard for time in one[1])
    return {
        "clients": clients,
        "accepted": len(firsts),
        "refused": len(refused),
        "lost": sum(one[2] for one in heard),
        "first_token_p50_seconds": statistics.median(firsts),
        "first_token_p99_seconds": firsts[int(len(firsts) * 0.99)],
        "refusal_p50_seconds": statistics.median(refused) if refused else 0.0,
        "refusal_p99_seconds": refused[int(len(refused) * 0.99)] if refused else 0.0,
        "refusal_most_seconds": refused[-1] if refused else 0.0,
    }


def leave(server: Server, count: int) -> None:
    """Sends requests and closes their connections at any time."""
    chance = random.Random(1)
    for _ in range(count):
        content = json.dumps({"prompt": "x" * 20, "max_tokens": 100, "stream": chance.random() < 0.5}).encode()
        with contextlib.suppress(OSError), socket.create_connection((server.host, int(server.port))) as made:
            made.sendall(f"{HEAD}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            time.sleep(chance.choice([0, 0.01, 0.05]))


@contextlib.contextmanager
def chosen_run(given: str | None) -> Iterator[str]:
    """Yields a run's folder."""
    with tempfile.TemporaryDirectory() as name:
        if given is None:
            write_run(pathlib.Path(name) / "small")
        yield given or f"{name}/small"


def main() -> int:
    """Returns 0 where nothing was lost, grew, or took too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--baseline-seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=10 * (PLACES + QUEUED))
    parser.add_argument("--disconnects", type=int, default=500)
    parser.add_argument("--run")
    args = parser.parse_args()
    with chosen_run(args.run) as run:
        server = Server(run)
        load(server, PLACES, args.baseline_seconds / 3)  # what is allocated once is there
        baseline = load(server, PLACES + QUEUED, args.baseline_seconds)
        before = server.memory_bytes
        over = load(server, args.clients, args.seconds)
        growth = server.memory_bytes - before
        leave(server, args.disconnects)
        time.sleep(2)
        pages = server.metric("vllm:kv_cache_usage_perc")
        compiled = server.metric("vllm:compilations_total")
        server.process.terminate()
        code = server.process.wait(60)
    times = over["first_token_p99_seconds"] / baseline["first_token_p99_seconds"]
    record = {
        "baseline": baseline,
        "overload": over,
        "first_token_p99_times_baseline": times,
        "memory_growth_bytes": growth,
        "cache_used_after_disconnects": pages,
        "compilations": compiled,
        "exit_code": code,
    }
    sys.stdout.write(json.dumps(record, indent=1) + "\n")
    good = over["lost"] == 0 and over["refusal_p99_seconds"] <= MOST_REFUSAL_SECONDS and times <= MOST_TIMES_BASELINE
    return 0 if good and growth <= MOST_GROWTH_BYTES and pages == compiled == code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
