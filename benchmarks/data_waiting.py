"""How long `kanawa train` waits for data: text, chats, Parquet, a mixture, pictures and sounds, from the runs' events.

    python benchmarks/data_waiting.py [--steps 40] [--megabytes 8]

Every run is a process of its own with an empty cache of data. Counted is the time in which the loop waits for the next
batch and the device computes nothing, as a share of the steps' time, after the first second or so of an attempt
(`data_wait_share` of `kanawa report --json`). The control's rows sleep. Exit code 1 where a share is above 1 %, or the
control's below 20 %.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np
from data_pipeline import texts_to_write
from epoch_memory import write_parquet
from media_loader import write_pictures

LIMIT, LEAST_OF_CONTROL = 0.01, 0.2
SLEEP_SECONDS = 0.2
CONTROL = "control: each row sleeps 0.2 s"
_CLI = (sys.executable, "-c", "from kanawa.cli.main import main; raise SystemExit(main())")


def kanawa(*arguments: str, cache: Path) -> str:
    """Returns what a command prints; raises RuntimeError with its last lines where it fails."""
    environment = {**os.environ, "KANAWA_CACHE": str(cache)}
    done = subprocess.run([*_CLI, *arguments], check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        message = f"kanawa {' '.join(arguments)}: {done.stderr[-600:]}"
        raise RuntimeError(message)
    return done.stdout


def write_data(folder: Path, megabytes: int) -> None:
    """Writes the files of every kind."""
    texts = list(texts_to_write(megabytes))
    (folder / "text").mkdir()
    for number in range(20):
        (folder / "text" / f"{number}.txt").write_text("\n".join(texts[number::20]))
    with (folder / "chats.jsonl").open("w") as file:
        for text in texts:
            asked, answer = text[:60], text[60:]
            file.write(json.dumps({"prompt": asked, "completion": answer}) + "\n")
    write_parquet(folder / "text.parquet", megabytes)
    write_pictures(folder / "pictures", 400)
    (folder / "sounds").mkdir()
    lines = []
    for number in range(200):
        samples = np.random.default_rng(number).normal(0, 3000, 24_000).astype(np.int16)
        with wave.open(str(folder / "sounds" / f"{number}.wav"), "wb") as sound:
            sound.setnchannels(1)
            sound.setsampwidth(2)
            sound.setframerate(16_000)
            sound.writeframes(samples.tobytes())
        lines.append(json.dumps({"audio": f"{number}.wav", "text": "turn left"}))
    (folder / "sounds" / "sounds.jsonl").write_text("\n".join(lines) + "\n")


def control(run: str, steps: int) -> None:
    """Trains on rows that sleep; in this process."""
    import kanawa as kn
    from kanawa_runtime.data.random_tokens import RandomTokens

    class Sleeping(RandomTokens):
        class Config(RandomTokens.Config):
            pass

        def row(self, index: int) -> dict[str, np.ndarray]:
            time.sleep(SLEEP_SECONDS)
            return super().row(index)

    cfg = kn.component("experiments", "quickstart")()
    rows = Sleeping.Config(sequence_length=cfg.data.sequence_length, vocab_size=cfg.model.vocab_size)
    kn.train(cfg.set(data=rows), run=run, steps=steps, set=["batch_size=8"], progress=False)


def main() -> int:
    """Runs every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--megabytes", type=int, default=8)
    parser.add_argument("--only", help="the first case, and those whose names begin so")
    parser.add_argument("--control", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.control:
        control(args.control, args.steps)
        return 0
    with tempfile.TemporaryDirectory(prefix="kanawa-waiting-") as name:
        folder = Path(name)
        write_data(folder, args.megabytes)
        text, chats, parquet = (str(folder / file) for file in ("text/*.txt", "chats.jsonl", "text.parquet"))
        cases: dict[str, tuple[str, ...]] = {
            "text": ("quickstart", "--data", text),
            # Conversations are read by the tokenizer of the model that learns them: the first run's.
            "JSON Lines of chats": (str(folder / "0" / "run"), "--data", chats, "--modify", "sft"),
            "Parquet": ("quickstart", "--data", parquet),
            "a mixture of three": ("quickstart", "--data", f"{text}*0.5,{parquet}*0.3,{chats}:field=prompt*0.2"),
            "pictures": ("vit-tiny", "--data", str(folder / "pictures")),
            "WAV": ("conformer-tiny", "--data", str(folder / "sounds" / "sounds.jsonl")),
            CONTROL: (),
        }
        missed = [
            case
            for number, (case, what) in enumerate(cases.items())
            if (number == 0 or case.startswith(args.only or ""))
            and not _holds(case, what, folder / str(number), args.steps)
        ]
    return 1 if missed else 0


def _holds(case: str, what: tuple[str, ...], folder: Path, steps: int) -> bool:
    """Trains a case and writes its line; returns whether its share is within the limit."""
    run = str(folder / "run")
    if what:
        few = ("--set", "batch_size=8", "--set", "evaluation.final_batches=1")
        kanawa("train", *what, "--steps", str(steps), *few, "--run", run, cache=folder / "cache")
    else:
        command = [sys.executable, __file__, "--control", run, "--steps", str(min(steps, 20))]
        subprocess.run(command, check=True, capture_output=True)
    report: dict[str, Any] = json.loads(kanawa("report", run, "--json", cache=folder / "cache"))["runs"][0]
    share, seconds = report["data_wait_share"], report["data_wait_seconds_per_step"]
    sys.stdout.write(f"{case:32} {share:8.2%}  {1e3 * seconds:8.2f} ms a step\n")
    sys.stdout.flush()
    return bool(share > LEAST_OF_CONTROL if case == CONTROL else share <= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
