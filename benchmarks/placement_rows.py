"""Plans workloads by target, batch and length alone, beside what others published.

Run: `python benchmarks/placement_rows.py [--only WORD]`. Prints a row as each plan ends: planned and published seconds,
ours by theirs, memory, the mesh that placement chose, and the command's processor time with nothing remembered. Quick
plans: nothing is compiled.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import NamedTuple

from paired import children_seconds


class Row(NamedTuple):
    """A published step; `most` is how many times its seconds ours may take."""

    experiment: str
    target: str
    rows: int
    length: int
    seconds: float
    most: float = 1.1
    #: What the workload itself is beyond the model.
    given: tuple[str, ...] = ()


_FP8 = ("--modify", "fp8")
#: Rows of 405B at batches that aren't published: a row a chip.
ROWS = (
    Row("llama3.1-8b", "v6e-8", 24, 8192, 3.44),
    Row("llama3.1-8b", "v6e-256", 768, 8192, 4.55),
    Row("llama3.1-70b", "v6e-256", 1280, 8192, 42.7),
    Row("llama3.1-405b", "v5p-1024", 1024, 8192, 131.0, 1.2),
    Row("llama3.1-405b", "v6e-256x2", 512, 8192, 54.8, 1.2),
    Row("llama3.1-70b", "v7x-128", 256, 8192, 12.2),
    Row("llama3.1-70b", "v7x-128", 256, 8192, 7.93, 1.2, _FP8),
    Row("llama2-70b", "v5p-1024", 1024, 4096, 11.6),
    Row("llama2-70b", "v5p-1024", 1024, 4096, 11.6, 1.1, ("--modify", "optimizer:name=muon")),
    Row("mixtral-8x7b", "v6e-256", 3072, 4096, 13.48, 1.2),
    Row("gpt-oss-120b", "v7x-512", 5120, 8192, 17.1, 1.2),
    Row("deepseek-v3", "v7x-512", 4096, 4096, 26.8, 1.2),
    Row("gemma3-12b", "v6e-256", 256, 32768, 7.3),
    Row("gemma3-12b", "v6e-256x2", 512, 32768, 7.8),
    Row("gemma3-12b", "v6e-256x4", 1024, 32768, 8.4),
)


def planned(row: Row) -> str:
    """Returns a row of the table, or why there is none."""
    sets = ("--set", f"batch_size={row.rows}", "--set", f"data.sequence_length={row.length}")
    command = [sys.executable, "-m", "kanawa.cli", "plan", row.experiment, "--on", row.target, "--quick", "--json"]
    with tempfile.TemporaryDirectory() as fresh:
        before = children_seconds()
        done = subprocess.run(
            [*command, *row.given, *sets],
            capture_output=True, text=True, check=False, env={**os.environ, "KANAWA_CACHE": fresh},
        )  # fmt: skip
        taken = children_seconds() - before
    name = " ".join((row.experiment, *row.given[1:], row.target, f"{row.rows:,} x {row.length:,}"))
    if done.returncode:
        return f"| {name} | {done.stderr.strip().splitlines()[-1]} |"
    plan = json.loads(done.stdout)
    ours, held = plan["step_seconds"], plan["memory_per_device_bytes"] / 2**30
    cells = (
        name, f"{ours:.2f}", str(row.seconds), f"{ours / row.seconds:.2f} of {row.most}",
        f"{held:.1f} GiB" + ("" if plan["fits"] else ", doesn't fit"), str(plan["mesh"]), f"{taken:.0f} s",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Plans each row in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD")
    args = parser.parse_args()
    for row in ROWS:
        if args.only in " ".join((row.experiment, row.target, *row.given)):
            sys.stdout.write(planned(row) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
