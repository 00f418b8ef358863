"""Rollouts drawn one step off policy against synchronous ones, by two processes, with a long tail injected.

    python benchmarks/rollouts_off_policy.py --steps 12

Both are runs of `kanawa train grpo-demo` by a gang of two processes (gloo), with a model twice as wide. First the
seconds of a step are measured as they are. Then one rollout of each process's rows takes as much longer to be rated, as
a sandbox or a judge may: a tail as long as the rest of the step. The ratio is that of the median step, tail included.
With `--tail` that is so many seconds, unmeasured, so that pairs of several calls can be counted together.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TAIL = "KANAWA_BENCHMARK_TAIL"
ROWS = 128
_calls = 0


def slow_reward(rollout: Any) -> float:
    """The share of tokens that are right; one call in each process's half of a batch takes the tail."""
    global _calls  # noqa: PLW0603 - a reward has no other place to count its calls
    _calls += 1
    if _calls % (ROWS // 2) == 0:
        time.sleep(float(os.environ.get(TAIL, "0")))
    pairs = zip(rollout.completion_ids, rollout.answer_ids, strict=False)
    return sum(mine == wanted for mine, wanted in pairs) / len(rollout.answer_ids)


def free_port() -> int:
    """Returns a port that nothing listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def step_seconds(folder: Path, steps: int, tail: float, *options: str) -> tuple[float, str]:
    """Returns the median seconds of a step of a gang of two, without the first three, and of its parts, in words."""
    settings = [
        "model.input_dim=128", "rollouts.rewards=['rollouts_off_policy:slow_reward']",
        "evaluation.every_steps=1000", "rollouts.evaluation_prompts=0", "checkpoints.every_steps=1000", *options,
    ]  # fmt: skip
    words = [word for setting in settings for word in ("--set", setting)]
    address = f"127.0.0.1:{free_port()}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parent), TAIL: str(tail)}
    command = [sys.executable, "-m", "kanawa.cli", "train", "grpo-demo", "--run", str(folder), "--steps", str(steps)]
    command += [*words, "--coordinator", address, "--processes", "2", "--process-id"]
    gang = [
        subprocess.Popen([*command, str(index)], env=environment, stderr=subprocess.PIPE, text=True)
        for index in range(2)
    ]
    errors = [process.communicate(timeout=900)[1] for process in gang]
    if any(process.returncode for process in gang):
        raise SystemExit("\n".join(errors))
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    steps_of = [event for event in events if event["event"] == "step"]
    clocks = [event["clock"] for event in steps_of]
    parts = []
    for name in ("rollout_seconds", "rollout_wait_seconds"):
        found = [event[name] for event in steps_of[3:] if name in event]
        parts += [f"{name} {statistics.median(found):.3f}"] if found else []
    seconds = statistics.median(later - before for before, later in zip(clocks[3:], clocks[4:], strict=False))
    return seconds, ", ".join(parts)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--tail", type=float, help="seconds; measured by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        plain = step_seconds(Path(place) / "plain", args.steps, 0.0)[0] if args.tail is None else args.tail
        sys.stdout.write(f"a tail of {plain:.3f} s{'' if args.tail else ', as long as a step without one'}\n")
        ratios = []
        for pair in range(args.pairs):
            runs = {"synchronous": (), "ahead": ("rollouts.off_policy=true",)}
            found = {}
            # One after the other, and the other way round the next time.
            for name in runs if pair % 2 == 0 else reversed(runs):
                found[name] = step_seconds(Path(place) / f"{name}-{pair}", args.steps, plain, *runs[name])
            (before, _), (after, parts) = found["synchronous"], found["ahead"]
            ratios.append(before / after)
            sys.stdout.write(
                f"synchronous {before:.3f} s, one step off policy {after:.3f} s ({parts}): {ratios[-1]:.2f} times\n"
            )
            sys.stdout.flush()
        from importlib.metadata import version

        versions = ", ".join(f"{name} {version(name)}" for name in ("kanawa-runtime", "jax"))
        sys.stdout.write(f"median {statistics.median(ratios):.2f} times ({versions}; load {os.getloadavg()[0]:.1f})\n")


if __name__ == "__main__":
    main()
