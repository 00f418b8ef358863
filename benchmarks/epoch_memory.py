"""The memory of a process that reads an epoch of a large text: after each part of it, and before and while it encodes.

    python benchmarks/epoch_memory.py --gigabytes 10 --folder /a/disk/with/thirty

Three times as much disk is needed: the text, and its shards as uint16. Both are removed at the end.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from data_pipeline import BATCH, LENGTH, write_corpus

PARTS = (0.1, 0.25, 0.5, 1.0)


def memory_megabytes(field: str) -> float:
    """Returns what Linux says of this process: VmRSS, VmHWM (its peak), RssAnon."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def show(what: str, began: float) -> None:
    """Prints what is in memory now, and the most since the last line."""
    rss, anonymous, peak = (memory_megabytes(field) for field in ("VmRSS", "RssAnon", "VmHWM"))
    seconds = time.perf_counter() - began
    sys.stdout.write(f"{what:28} {rss:7.0f} MB  own {anonymous:6.0f} MB  peak {peak:6.0f} MB  {seconds:7.0f} s\n")
    sys.stdout.flush()
    # From here on the peak is that of the next part.
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    """Reads one epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--folder", help="where text and shards go for a while")
    args = parser.parse_args()
    from kanawa_runtime.data.loader import GrainLoader
    from kanawa_runtime.data.source import TextSource
    from kanawa_runtime.data.text_files import JsonLines
    from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer

    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        os.environ["KANAWA_CACHE"] = str(Path(folder, "cache"))
        documents = write_corpus(Path(folder, "text.jsonl"), int(args.gigabytes * 1024))
        show(f"{args.gigabytes} GB, {documents:,} documents", began)
        corpus = JsonLines.Config(files=("text.jsonl",), root=folder, validation_one_in=0)
        cfg = TextSource.Config(corpus=corpus, tokenizer=ByteTokenizer.Config(), sequence_length=LENGTH, epochs=1)
        source = cfg.build()
        assert source.content_digest  # noqa: S101
        show("read for its digest", began)
        rows = source.num_rows or 0
        show("encoded, and rows planned", began)
        ends = [int(rows * part) // BATCH for part in PARTS[:-1]]
        for number, _ in enumerate(GrainLoader.Config().build(source=source, global_batch=BATCH), 1):
            if number in ends:
                show(f"{PARTS[ends.index(number)] * args.gigabytes:g} GB read", began)
        show(f"{args.gigabytes:g} GB read", began)


if __name__ == "__main__":
    main()
