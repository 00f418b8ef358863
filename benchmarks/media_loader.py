"""Pictures and seconds of sound a second of the loader beside a PyTorch DataLoader with the same decoding.

Run: python benchmarks/media_loader.py --torch-python PYTHON [--rounds 5] [--seconds 3] [--real-time]; PYTHON has torch,
Pillow, soundfile and scipy. Both sides read the same files, decode them with the same libraries (our WAV reader needs
none), cut and mirror pictures alike, and make batches of 32. Each first tries 0, 1 and 2 workers (our threads, their
processes) and then takes turns at its best, each turn in a process of its own. Prints the median ratio with its
interval; exit code 1 below the limit of 1.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

BATCH, LIMIT = 32, 1.0
RATE, OTHER_RATE, SOUND_SECONDS = 16_000, 44_100, 6
SIDE = Path(__file__).with_name("media_loader_side.py")
KINDS = ("pictures", "wav", "flac", "resampled")


def write_pictures(folder: Path, count: int) -> None:
    """Writes photograph-like JPEG files of 500 x 375 and some PNG files, in folders by class."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for number in range(count):
        noise = Image.fromarray(draw.integers(0, 256, (24, 32, 3), np.uint8)).resize(
            (500, 375), Image.Resampling.BICUBIC
        )
        grain = draw.normal(0, 6, (375, 500, 3))
        picture = Image.fromarray(np.clip(np.asarray(noise) + grain, 0, 255).astype(np.uint8))
        place = folder / f"class{number % 8}"
        place.mkdir(parents=True, exist_ok=True)
        suffix = "png" if number % 8 == 7 else "jpg"
        picture.save(place / f"{number}.{suffix}", **({"quality": 90} if suffix == "jpg" else {}))


def write_sounds(folder: Path, count: int, suffix: str, rate: int) -> None:
    """Writes recordings of noise with a changing loudness, 6 s each, and the table of their texts."""
    import soundfile

    folder.mkdir(parents=True)
    draw, lines = np.random.default_rng(0), []
    for number in range(count):
        loudness = np.repeat(draw.uniform(0, 0.3, 60), SOUND_SECONDS * rate // 60)
        samples = loudness * draw.standard_normal(loudness.size)
        soundfile.write(folder / f"{number}.{suffix}", samples.clip(-1, 1), rate, subtype="PCM_16")
        lines.append(json.dumps({"audio": f"{number}.{suffix}", "text": "what was said in it"}))
    (folder / "speech.jsonl").write_text("\n".join(lines) + "\n")


def our_source(folder: Path, kind: str) -> Any:
    """Returns the source that `--data` makes of the files."""
    from kanawa_runtime.data.images.augment import Flip, RandomCrop
    from kanawa_runtime.data.images.files import ImageFiles
    from kanawa_runtime.data.speech.source import SpeechSource

    if kind == "pictures":
        changes = (RandomCrop.Config(), Flip.Config())
        cfg = ImageFiles.Config(files=("**/*",), root=str(folder), validation_one_in=0, augmentations=changes)
        return cfg.build()
    convert = kind == "resampled"
    return SpeechSource.Config(files=("speech.jsonl",), root=str(folder), validation_one_in=0, convert=convert).build()


def measure_ours(folder: Path, kind: str, workers: int, seconds: float) -> dict[str, Any]:
    """Returns our rows a second in this process; 0 workers read in the thread that takes them."""
    import kanawa as kn
    from kanawa_backends_cpu.process import prepare_process
    from kanawa_runtime.data.loader import GrainLoader

    # As every command does.
    prepare_process("train")
    source = our_source(folder, kind)
    loader = GrainLoader.Config(num_threads=max(workers, 1)).build(source=source, global_batch=BATCH)
    stream = iter(loader) if workers else (loader.batch(step) for step in range(1 << 30))
    rows = 0
    next(stream)
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        next(stream)
        rows += BATCH
    taken = time.perf_counter() - begin
    stream.close()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    busy = usage.ru_utime + usage.ru_stime
    return {"version": f"kanawa {kn.__version__}", "rows_a_second": rows / taken, "rows": rows, "processor": busy}


def child(command: list[str]) -> dict[str, Any]:
    """Returns what a process prints as JSON on its last line."""
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{' '.join(command)} ended with {run.returncode}:\n{run.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def compare(folder: Path, kind: str, args: argparse.Namespace) -> dict[str, Any]:
    """Returns both sides' rows a second, each with its best number of workers."""
    last = str(args.seconds)

    def run(side: int, workers: int) -> dict[str, Any]:
        where = [str(folder), kind, str(workers)]
        ours = [sys.executable, __file__, "--ours", *where, last]
        command = ours if side == 0 else [args.torch_python, str(SIDE), *where, str(BATCH), last]
        return child([*(("chrt", "-f", "1") if args.real_time else ()), *command])

    tried = [{workers: run(side, workers)["rows_a_second"] for workers in (0, 1, 2)} for side in (0, 1)]
    best = [max(speeds, key=speeds.__getitem__) for speeds in tried]
    found: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for number in range(args.rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            found[side].append(run(side, best[side]))
    speeds = [[one["rows_a_second"] for one in side] for side in found]
    ratios = sorted(ours / torch for ours, torch in zip(*speeds, strict=True))
    reach = 0.98 * args.rounds**0.5
    low, high = max(0, int(args.rounds / 2 - reach)), min(args.rounds - 1, int(args.rounds / 2 + reach))
    unit = 1 if kind == "pictures" else SOUND_SECONDS
    return {
        "kind": kind,
        "unit": "pictures/s" if kind == "pictures" else "seconds of sound/s",
        "ours": unit * statistics.median(speeds[0]),
        "torch": unit * statistics.median(speeds[1]),
        "ratio": statistics.median(ratios),
        "interval": [ratios[low], ratios[high]],
        "rounds": args.rounds,
        "workers": best,
        "tried": [{workers: unit * speed for workers, speed in side.items()} for side in tried],
        "versions": [side[0]["version"] for side in found],
        "load": os.getloadavg()[0],
    }


def main() -> int:
    """Writes the files, measures both sides, and prints a line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", help="an interpreter with torch, Pillow, soundfile and scipy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--real-time", action="store_true", help="for a machine that other work shares; needs root")
    parser.add_argument("--ours", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ours:
        folder, kind, workers, seconds = args.ours
        found = measure_ours(Path(folder), kind, int(workers), float(seconds))
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    if args.torch_python is None:
        parser.error("--torch-python is missing: the other side needs torch")
    missed = False
    with tempfile.TemporaryDirectory() as made:
        for kind in [args.only] if args.only else KINDS:
            folder = Path(made, kind)
            if kind == "pictures":
                write_pictures(folder, 400)
            else:
                rate = OTHER_RATE if kind == "resampled" else RATE
                write_sounds(folder, 200, "flac" if kind == "flac" else "wav", rate)
            found = compare(folder, kind, args)
            missed |= found["ratio"] < LIMIT
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
