"""Documents a second from JSON Lines to packed batches, beside grain's own pipeline and a PyTorch DataLoader; memory.

Every side reads the same file, encodes bytes, packs rows by best fit and batches them. Ours runs twice: from text, and
from the shards that the first pass wrote. Each pass is a process of its own, whose peak memory is shown for a file of a
quarter of the size too. `--torch-python` names an interpreter that has torch.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from paired import children_seconds

LENGTH, BATCH = 4096, 8
SIDE = Path(__file__).with_name("data_pipeline_side.py")


def texts_to_write(megabytes: int) -> Iterator[str]:
    """Yields texts of 20 to 400 made-up words, so many megabytes as JSON Lines."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(20_000)]
    texts = [" ".join(draw.choices(words, k=draw.randint(20, 400))) for _ in range(4096)]
    count = size = 0
    while size < megabytes << 20:
        text = f"{count} {texts[count % len(texts)]}"
        yield text
        size += len(text) + len('{"text": ""}\n')
        count += 1


def write_corpus(path: Path, megabytes: int) -> int:
    """Writes records of 20 to 400 made-up words; returns how many."""
    count = 0
    with path.open("w") as file:
        for text in texts_to_write(megabytes):
            file.write(json.dumps({"text": text}) + "\n")
            count += 1
    return count


def measure_ours(path: Path, tokenizer: str = "") -> dict[str, float]:
    """Returns the time and memory of one epoch in this process, through the cache that KANAWA_CACHE names."""
    from kanawa_runtime.data.loader import GrainLoader
    from kanawa_runtime.data.source import TextSource
    from kanawa_runtime.data.text_files import JsonLines
    from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer

    begin = time.perf_counter()
    corpus = JsonLines.Config(files=(path.name,), root=str(path.parent), validation_one_in=0)
    cfg = TextSource.Config(corpus=corpus, tokenizer=ByteTokenizer.Config(), sequence_length=LENGTH, epochs=1)
    if tokenizer:
        cfg.set(tokenizer_file=tokenizer)
    source = cfg.build()
    batches = sum(1 for _ in GrainLoader.Config().build(source=source, global_batch=BATCH))
    seconds = time.perf_counter() - begin
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"batches": batches, "seconds": seconds, "peak_megabytes": peak / 1024}


def child(command: list[str], **environment: str) -> dict[str, float]:
    """Returns what a process prints as JSON on its last line."""
    # Bytecode is compiled once, as an installer does it; without, imports take three times as long.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run = subprocess.run(command, env={**inherited, **environment}, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{' '.join(command)} ended with {run.returncode}:\n{run.stderr[-2000:]}")
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Runs every side on two sizes and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--torch-python", help="an interpreter with torch")
    parser.add_argument("--tokenizer", default="", help="a folder with a tokenizer.json; bytes without")
    parser.add_argument("--pairs", type=int, default=1, help="times that the sides run, one after another")
    parser.add_argument("--no-grain", action="store_true", help="leave grain out: it is slow")
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ours:
        sys.stdout.write(json.dumps(measure_ours(args.ours, args.tokenizer)) + "\n")
        return
    load = f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    sys.stdout.write(f"{load}; rows of {LENGTH}, batches of {BATCH}\n")
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in (args.megabytes // 4, args.megabytes):
            path = Path(folder, f"{megabytes}.jsonl")
            documents = write_corpus(path, megabytes)
            ours = [sys.executable, __file__, "--ours", str(path), "--tokenizer", args.tokenizer]
            cache = str(Path(folder, f"cache{megabytes}"))
            sides = [("kanawa, from text", ours, cache), ("kanawa, from its shards", ours, cache)]
            for side in () if args.no_grain else ("grain-threads", "grain-processes"):
                sides.append((side, [sys.executable, str(SIDE), side, str(path), str(LENGTH), str(BATCH)], ""))
            if args.torch_python:
                sides.append(("torch", [args.torch_python, str(SIDE), "torch", str(path), str(LENGTH), str(BATCH)], ""))
            reads = str(Path(args.tokenizer, "tokenizer.json")) if args.tokenizer else ""
            for _ in range(args.pairs):
                shutil.rmtree(cache, ignore_errors=True)
                for name, command, place in sides:
                    before = children_seconds()
                    found = child(command, SIDE_TOKENIZER=reads, **({"KANAWA_CACHE": place} if place else {}))
                    processor = children_seconds() - before
                    speed = documents / found["seconds"]
                    sys.stdout.write(
                        f"{megabytes:5} MB  {found.get('version', name):24} {speed:10,.0f} documents/s  "
                        f"{found['batches']:6} batches  {processor:6.1f} s of processors  "
                        f"peak {found['peak_megabytes']:6.0f} MB  load {os.getloadavg()[0]:.1f}\n"
                    )
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
