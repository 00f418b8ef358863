"""A Conformer learns to write what espeak-ng says, in several voices and speeds; prints word error rates.

Sentences are one to three of 22 words. Those that are measured are never trained on: in voices that were, and in one
that wasn't. espeak-ng comes with the distribution (`apt-get install espeak-ng`).

Run: python benchmarks/speech_of_espeak.py [FOLDER] [--steps 500] [--sentences 1200]
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import kanawa as kn
import numpy as np
from kanawa_layers.speech.word_errors import word_error_rate
from speech_of_tones import WORDS, say

#: The voices that are learned, and one that is only listened to.
VOICES = ("en-us", "en-us+f3", "en-gb", "en-gb+f2", "en-gb-x-rp+m3", "en-gb-scotland")
NEW_VOICE = "en-us+m7"
#: Words a minute, and how high the voice is, of 0 to 99.
SPEEDS, PITCHES = (140, 200), (35, 65)
HELD_OUT, MOST_SECONDS = 96, 2.6


def speak(file: Path, text: str, voice: str, draw: np.random.Generator) -> None:
    """Writes a WAV file of what espeak-ng says: 22,050 Hz, at a drawn speed and height."""
    options = ["-v", voice, "-s", str(draw.integers(*SPEEDS)), "-p", str(draw.integers(*PITCHES))]
    subprocess.run(["espeak-ng", *options, "-w", str(file), text], check=True)


def write_speech(folder: Path, sentences: int) -> None:
    """Writes recordings and speech.jsonl, whose column `split` holds out sentences that no other recording says."""
    draw, seen = np.random.default_rng(0), set()

    def sentence() -> str:
        return " ".join(draw.choice(WORDS, draw.integers(1, 4)))

    held_out: set[str] = set()
    while len(held_out) < HELD_OUT:
        text = sentence()
        # One word alone is to be learned.
        held_out |= {text} if " " in text else set()
    texts = [text for text in (sentence() for _ in range(2 * sentences)) if text not in held_out][:sentences]
    rows = [(text, VOICES[draw.integers(len(VOICES))], "train") for text in texts]
    for text in sorted(held_out):
        rows += [(text, VOICES[draw.integers(len(VOICES))], "validation"), (text, NEW_VOICE, "validation")]
    lines = []
    for number, (text, voice, split) in enumerate(rows):
        name = f"{number}-{'new' if voice == NEW_VOICE else 'known'}.wav"
        speak(folder / name, text, voice, draw)
        lines.append(json.dumps({"audio": name, "text": text, "split": split}))
        seen.add((text, split))
    assert not {text for text, split in seen if split == "train"} & held_out
    (folder / "speech.jsonl").write_text("\n".join(lines) + "\n")


def word_error_rates(run: Any) -> dict[str, float]:
    """Returns the rates of a run on its held-out recordings, greedily, in known voices and in the new one."""
    rows = run.config.data.clone().build().held_out()
    transcribe = jax.jit(lambda p, s, x, n: kn.functional(run.model, "transcribe")(p, s, x, n, 24)[0].ids)
    said: dict[str, list[str]] = {"known": [], "new": []}
    heard: dict[str, list[str]] = {"known": [], "new": []}
    for index in range(rows.num_rows):
        record, row = rows.record(index), rows.row(index)
        ids = transcribe(run.params, run.state, row["audio"][None], row["audio_lengths"][None])
        kind = "new" if "-new" in record["address"] else "known"
        said[kind].append(record["text"])
        heard[kind].append(rows.text_of(np.asarray(ids)[0]))
    for kind in said:
        for one, other in list(zip(said[kind], heard[kind], strict=True))[:3]:
            say(f"  {kind} voice: said {one!r}, heard {other!r}")
    return {kind: word_error_rate(said[kind], heard[kind]) for kind in said}


def learn(folder: Path, steps: int) -> dict[str, float]:
    """Trains on the recordings, resampled to the model's 16,000 Hz, and returns the word error rates."""
    data = f"{folder}/speech.jsonl:sequence_length=24,max_seconds={MOST_SECONDS},convert=true,on_bad=skip"
    options = {"steps": steps, "batch_size": 16, "learner.schedule.peak": 2e-3}
    started = time.perf_counter()
    run = kn.train("conformer-tiny", data=data, set=options, run=folder / "run", progress=False)
    rates = word_error_rates(run)
    say(
        f"{steps} steps in {time.perf_counter() - started:.0f} s, {time.process_time():.0f} s of processor time; word "
        f"error rate on new sentences {rates['known']:.1%} in known voices, {rates['new']:.1%} in a new one"
    )
    return rates


def main() -> None:
    """Speaks, learns and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--sentences", type=int, default=1200)
    args = parser.parse_args()
    if shutil.which("espeak-ng") is None:
        sys.exit("espeak-ng isn't installed: apt-get install espeak-ng")
    with tempfile.TemporaryDirectory() as made:
        folder = (args.folder or Path(made)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        write_speech(folder, args.sentences)
        learn(folder, args.steps)


if __name__ == "__main__":
    main()
