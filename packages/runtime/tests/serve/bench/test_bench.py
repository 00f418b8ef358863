"""`kanawa bench serve` against a server whose timings are known, and the loads it sends."""

import asyncio
import json
import threading
import time

import numpy as np
import pytest
from kanawa.cli.main import main
from kanawa.errors import UsageError
from kanawa_runtime.serve.bench import Workload, arrivals

#: What `vllm bench serve` 0.32 writes of a run without details.
KEYS = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
    "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
    "request_throughput", "request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
    "max_concurrent_requests", "rtfx", "latencies", "queue_times",
    *(f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl")),
}  # fmt: skip


class ScriptedServer:
    """Answers each completion with a first piece after `first` seconds and the others `gap` apart; notes both.

    The first answers wait until `together` requests are there at once.
    """

    def __init__(self, first=0.05, gap=0.02, fail_every=0, together=1):
        self.first, self.gap, self.fail_every, self.together = first, gap, fail_every, together
        self.bodies, self.pieces, self.most, self.now = [], [], 0, 0

    def __enter__(self):
        ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self.thread.start()
        assert ready.wait(60)
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.stopping.set)
        self.thread.join(60)

    async def _serve(self, ready):
        self.loop, self.stopping = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._one, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            ready.set()
            await self.stopping.wait()

    async def _one(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /v1/models"):
            body = json.dumps({"data": [{"id": "scripted"}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        else:
            length = int(head.lower().split(b"content-length:")[1].split()[0])
            body = json.loads(await reader.readexactly(length))
            self.bodies.append(body)
            self.now += 1
            self.most = max(self.most, self.now)
            if self.fail_every and len(self.bodies) % self.fail_every == 0:
                writer.write(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nfull")
            else:
                await self._stream(writer, body)
            self.now -= 1
        await writer.drain()
        writer.close()

    async def _stream(self, writer, body):
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        deadline = time.monotonic() + 30
        while self.most < self.together and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        times = [time.perf_counter()]
        for index in range(body["max_tokens"]):
            await asyncio.sleep(self.gap if index else self.first)
            self._event(writer, {"choices": [{"text": "é ", "finish_reason": None}]}, cut=True)
            await writer.drain()
            times.append(time.perf_counter())
        usage = {"completion_tokens": body["max_tokens"], "prompt_tokens": len(body["prompt"])}
        self._event(writer, {"choices": [], "usage": usage})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        self.pieces.append(times)

    def _event(self, writer, event, cut=False):
        data = f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
        # A chunk may end inside a letter.
        for piece in (data[:-30], data[-30:]) if cut and len(data) > 30 else (data,):
            writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")


def bench(capsys, server, *arguments):
    code = main(["bench", "serve", "--base-url", server.url, "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_it_measures_what_the_server_did(capsys, tmp_path):
    out = tmp_path / "result.json"
    # Long beside what a busy machine adds: then what is measured is the server's, and no other of its times.
    with ScriptedServer(first=0.5, gap=0.2) as server:
        code, result = bench(
            capsys, server, "--num-prompts", "8", "--dataset-name", "random", "--input-len", "5", "--output-len", "6",
            "--request-rate", "50", "--goodput", "ttft:100000", "--result", str(out),
        )  # fmt: skip
    assert code == 0 and result.keys() == KEYS and json.loads(out.read_text()) == result
    assert result["completed"] == 8 and result["failed"] == 0 and result["model_id"] == "scripted"
    assert result["total_input_tokens"] == 40 and result["total_output_tokens"] == 48
    assert result["request_goodput"] == result["request_throughput"] == pytest.approx(8 / result["duration"])
    gaps = np.concatenate([np.diff(times[1:]) for times in server.pieces]) * 1e3
    firsts = np.array([times[1] - times[0] for times in server.pieces]) * 1e3
    # The client sees what the server did, later by what a loaded machine takes to get to it.
    assert result["mean_itl_ms"] == pytest.approx(gaps.mean(), rel=0.2)
    assert result["mean_tpot_ms"] == pytest.approx(gaps.mean(), rel=0.2)
    assert firsts.mean() <= result["mean_ttft_ms"] + 1 and result["mean_ttft_ms"] < firsts.mean() + 400
    assert all(body["stream"] and body["ignore_eos"] and body["temperature"] == 0 for body in server.bodies)


def test_it_does_not_wait_for_answers_unless_told_to(capsys):
    arguments = ("--num-prompts", "6", "--dataset-name", "random", "--output-len", "3", "--input-len", "2")
    with ScriptedServer(together=6) as server:
        bench(capsys, server, *arguments)
        assert server.most == 6
    with ScriptedServer(first=0.5, together=2) as server:
        _, result = bench(capsys, server, *arguments, "--max-concurrency", "2", "--save-detailed")
        assert server.most == 2
    assert max(result["queue_times"]) > 0.05 and len(result["ttfts"]) == 6
    # What was held back isn't the server's to answer for.
    assert max(result["ttfts"]) < max(result["queue_times"])


def test_refused_requests_are_counted_and_told(capsys):
    with ScriptedServer(gap=0.001, first=0.001, fail_every=3) as server:
        code, result = bench(capsys, server, "--num-prompts", "6", "--save-detailed", "--seed", "3")
    assert code == 1 and result["failed"] == 2 and result["completed"] == 4
    assert sorted(set(result["errors"])) == ["", "HTTP 429: full"]


def test_lengths_and_arrivals_are_as_asked_for_and_from_the_seed_alone():
    asked = Workload(count=4000, seed=1).requests()
    assert np.median([len(one.prompt) for one in asked]) == pytest.approx(100, rel=0.08)
    assert np.median([one.max_tokens for one in asked]) == pytest.approx(67, rel=0.08)
    assert asked == Workload(count=4000, seed=1).requests() != Workload(count=4000, seed=2).requests()
    shared = Workload(kind="prefix_repetition", count=6, prefixes=2, prefix_length=8, input_length=3).requests()
    assert [one.prompt[:8] for one in shared[::2]] == [shared[0].prompt[:8]] * 3 != [shared[1].prompt[:8]] * 3
    for burstiness, spread in ((1.0, 1.0), (0.25, 2.0), (float("inf"), 0.0)):
        gaps = np.diff(arrivals(20_000, 8.0, burstiness, 0))
        assert gaps.mean() == pytest.approx(1 / 8, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(spread, abs=0.1)
    assert arrivals(3, float("inf"), 1.0, 0) == [0.0, 0.0, 0.0]


def test_files_are_read_and_their_faults_named(tmp_path):
    file = tmp_path / "asked.jsonl"
    file.write_text('{"prompt": "hello", "max_tokens": 3}\n\n{"prompt": [1, 2], "max_tokens": 4}\n')
    first, second = Workload(kind="custom", file=file).requests()
    assert (first.prompt, first.max_tokens, second.prompt_tokens) == ("hello", 3, 2)
    file.write_text('{"promt": "hello"}\n')
    with pytest.raises(UsageError, match=r"asked.jsonl:1: expected prompt, a text .*did you mean"):
        Workload(kind="custom", file=file).requests()
    file.write_text('{"prompt": "hello", "max_tokens": 0}\n')
    with pytest.raises(UsageError, match="max_tokens is 0, expected a whole number of at least 1"):
        Workload(kind="custom", file=file).requests()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--base-url", "127.0.0.1:1"), "expected http://HOST:PORT"),
        (("--base-url", "http://127.0.0.1:1"), "is the server running"),
        (("--request-rate", "0"), "have to be more than 0"),
        (("--percentile-metrics", "ttf"), "no metric 'ttf'"),
        (("--metric-percentiles", "101"), "expected numbers from 0 to 100"),
        (("--goodput", "itl:5"), "expected METRIC:MILLISECONDS"),
        (("--max-concurrency", "0"), "expected at least 1"),
        (("--vocab-size", "3"), "expected over 3"),
    ],
)
def test_what_cannot_be_measured_is_said(arguments, said, capsys):
    assert main(["bench", "serve", *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
