"""Our HTTP server beside vLLM's on a CPU: 96 requests like conversations, 32 at once, the sides in turns.

    python benchmarks/serving_http.py --other PYTHON [--dtype bfloat16] [--rounds 5] [--set engine.X=…]

PYTHON and FOLDER are as in benchmarks/serving.py, which writes the model. Both servers are asked by `kanawa bench
serve` with the same token ids, others each round. While one side works the other is stopped. Prints of each side the
medians over rounds of: time to first token (median, p99), time between tokens, and output tokens a second.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from serving import WRITE_MODEL, write

#: Pairs of ASCII's letters up to the vocabulary of the model: servers take texts too, and want a tokenizer.
WRITE_TOKENIZER = """
import json, sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
special = ["<pad>", "<s>", "</s>"]
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
pairs = [(a, b) for a in letters for b in letters if a.isascii() and b.isascii()][: 8192 - len(special) - len(letters)]
vocab = {text: index for index, text in enumerate([*special, *letters, *(a + b for a, b in pairs)])}
tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(special)
tokenizer.save(sys.argv[1] + "/tokenizer.json")
config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
open(sys.argv[1] + "/tokenizer_config.json", "w").write(json.dumps(config))
"""
SHOWN = ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "output_throughput")
KANAWA = Path(sys.executable).with_name("kanawa")
BENCH = ("--dataset-name", "sharegpt", "--vocab-size", "8192", "--json")


class Server:
    """A server's process, stopped while it isn't asked."""

    def __init__(self, name: str, command: list[str], port: int) -> None:
        self.name, self.url, self.results = name, f"http://127.0.0.1:{port}", []
        env = {**os.environ, "JAX_PLATFORMS": "cpu", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=env
        )
        began = time.monotonic()
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() - began > 600:
                message = f"the server {name} didn't start; run it by hand to see why: {' '.join(command)}"
                raise SystemExit(message)
            time.sleep(0.5)
        write(f"{name}: ready after {time.monotonic() - began:.0f} s")
        self.signal(signal.SIGSTOP)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + ("/ready" if self.name == "kanawa" else "/health"), timeout=1):
                return True
        except OSError:
            return False

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the processes of the server."""
        os.killpg(self.process.pid, number)

    def ask(self, prompts: int, at_once: int, seed: int) -> dict[str, Any]:
        """Returns the result of a load."""
        self.signal(signal.SIGCONT)
        load = ("--num-prompts", str(prompts), "--max-concurrency", str(at_once), "--seed", str(seed))
        command = [str(KANAWA), "bench", "serve", "--base-url", self.url, *BENCH, *load]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        self.signal(signal.SIGSTOP)
        return json.loads(out)


def main() -> None:
    """Runs the rounds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", help="Python of an environment with vllm and transformers")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/kanawa-serving-llama"))
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--port", type=int, default=8170)
    parser.add_argument("--set", action="append", default=[], metavar="engine.X=…", help="of our server")
    args = parser.parse_args()
    if not (args.folder / "config.json").is_file():
        subprocess.run([args.other or sys.executable, "-c", WRITE_MODEL, str(args.folder)], check=True)
    if not (args.folder / "tokenizer.json").is_file():
        subprocess.run([args.other or sys.executable, "-c", WRITE_TOKENIZER, str(args.folder)], check=True)
    ports = [str(args.port), str(args.port + 1)]
    settings = [part for one in args.set for part in ("--set", one)]
    ours = ["serve", str(args.folder), "--modify", f"compute:dtype={args.dtype}"]
    sides = {"kanawa": [str(KANAWA), *ours, "--port", ports[0], *settings]}
    if args.other:
        theirs = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(args.folder), "--dtype", args.dtype]
        limits = ["--max-model-len", "2048", "--max-num-seqs", str(args.at_once)]
        sides["vllm"] = [args.other, *theirs, *limits, "--port", ports[1]]
    servers: list[Server] = []
    try:
        for port, (name, command) in zip(ports, sides.items(), strict=False):
            servers.append(Server(name, command, int(port)))
        for server in servers:
            server.ask(args.at_once, args.at_once, 0)
        for index in range(args.rounds):
            # Back and forth, so that drift cancels.
            for server in servers if index % 2 == 0 else servers[::-1]:
                server.results.append(server.ask(args.prompts, args.at_once, index + 1))
    finally:
        for server in servers:
            server.signal(signal.SIGKILL)
            server.process.wait()
    for server in servers:
        shown = {key: statistics.median(result[key] for result in server.results) for key in SHOWN}
        write(f"{args.dtype} {server.name}: " + ", ".join(f"{key} {value:.0f}" for key, value in shown.items()))


if __name__ == "__main__":
    main()
