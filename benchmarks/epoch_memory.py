"""The memory of a process that reads an epoch of a large text: after each part of it, and after it was encoded.

    python benchmarks/epoch_memory.py --gigabytes 10 --folder /a/disk/with/thirty [--parquet]

Three times as much disk is needed: the text, and its shards as uint16. Both are removed at the end.
"""

import argparse
import contextlib
import multiprocessing
import os
import re
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from data_pipeline import BATCH, LENGTH, texts_to_write, write_corpus

PARTS = (0.1, 0.2, 0.5, 1.0)
_GROUP_ROWS = 1 << 15


def memory_megabytes(field: str, process: str = "self") -> float:
    """Returns what Linux says of a process: VmRSS, VmHWM (its peak), RssAnon; 0 of one that has ended."""
    with contextlib.suppress(OSError):
        found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc", process, "status").read_text())
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


class Encoders(threading.Thread):
    """Looks every half second at the memory of the processes that this one has started."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most_processes, self.most_megabytes, self.most_of_all = 0, 0.0, 0.0

    def run(self) -> None:
        """Looks until the program ends."""
        while True:
            listed = (task.read_text().split() for task in Path("/proc/self/task").glob("*/children"))
            with contextlib.suppress(OSError):
                # One that doesn't run a program of its own yet still shows this one's memory.
                children = [child for each in listed for child in each if _command(child) != _command("self")]
                own = sum(memory_megabytes("RssAnon", child) for child in children)
                self.most_processes = max(self.most_processes, len(children))
                self.most_megabytes = max(self.most_megabytes, own)
                self.most_of_all = max(self.most_of_all, own + memory_megabytes("RssAnon"))
            time.sleep(0.5)


def _command(process: str) -> bytes:
    return Path("/proc", process, "cmdline").read_bytes()


def show(what: str, began: float) -> None:
    """Prints what is in memory now, and the most since the last line."""
    rss, anonymous, peak = (memory_megabytes(field) for field in ("VmRSS", "RssAnon", "VmHWM"))
    seconds = time.perf_counter() - began
    sys.stdout.write(f"{what:28} {rss:7.0f} MB  own {anonymous:6.0f} MB  peak {peak:6.0f} MB  {seconds:7.0f} s\n")
    sys.stdout.flush()
    # From here on the peak is that of the next part.
    Path("/proc/self/clear_refs").write_text("5")


def write_parquet(path: Path, megabytes: int) -> int:
    """Writes the records of `write_corpus` as Parquet, in groups of 32,768 rows; returns how many."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("text", pa.string())])
    count = 0
    with pq.ParquetWriter(path, schema) as writer:
        waiting: list[str] = []
        for text in texts_to_write(megabytes):
            waiting.append(text)
            count += 1
            if len(waiting) == _GROUP_ROWS:
                writer.write_table(pa.table({"text": waiting}, schema))
                waiting = []
        writer.write_table(pa.table({"text": waiting}, schema))
    return count


def main() -> None:
    """Reads one epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--folder", help="where text and shards go for a while")
    parser.add_argument("--parquet", action="store_true", help="a Parquet file instead of JSON Lines")
    args = parser.parse_args()
    from kanawa_runtime.data.loader import GrainLoader
    from kanawa_runtime.data.source import TextSource
    from kanawa_runtime.data.text_files import JsonLines, RecordTexts
    from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer

    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        os.environ["KANAWA_CACHE"] = str(Path(folder, "cache"))
        name = "text.parquet" if args.parquet else "text.jsonl"
        write = write_parquet if args.parquet else write_corpus
        # By another process, so that this one's memory is that of reading.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as writer:
            documents = writer.submit(write, Path(folder, name), int(args.gigabytes * 1024)).result()
        show(f"{args.gigabytes} GB, {documents:,} documents", began)
        kind = RecordTexts if args.parquet else JsonLines
        corpus = kind.Config(files=(name,), root=folder, validation_one_in=0)
        cfg = TextSource.Config(corpus=corpus, tokenizer=ByteTokenizer.Config(), sequence_length=LENGTH, epochs=1)
        source = cfg.build()
        encoders = Encoders()
        encoders.start()
        assert source.content_digest  # noqa: S101
        show("read and encoded", began)
        most = f"{encoders.most_processes} processes encoded: own at most {encoders.most_megabytes:.0f} MB"
        sys.stdout.write(f"{most}, with this one {encoders.most_of_all:.0f} MB\n")
        rows = source.num_rows or 0
        show("rows planned", began)
        ends = [int(rows * part) // BATCH for part in PARTS[:-1]]
        for number, _ in enumerate(GrainLoader.Config().build(source=source, global_batch=BATCH), 1):
            if number in ends:
                show(f"{PARTS[ends.index(number)] * args.gigabytes:g} GB read", began)
        show(f"{args.gigabytes:g} GB read", began)


if __name__ == "__main__":
    main()
