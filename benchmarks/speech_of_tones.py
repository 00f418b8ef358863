"""A Conformer learns to spell words that are played as tones, with CTC or an RNN transducer; prints word error rates.

Each letter is two tones, as on a telephone, of random length, pitch and loudness, under noise. Words are drawn from a
list; the sentences that are measured were not learned from. Run: python benchmarks/speech_of_tones.py [FOLDER]
"""

import json
import sys
import tempfile
import time
import wave
from pathlib import Path

import jax
import kanawa as kn
import numpy as np
from kanawa_layers.speech.ctc_decoding import prefix_beam
from kanawa_layers.speech.word_errors import word_error_rate

RATE, SENTENCES, STEPS = 16_000, 1200, 500
_SPOKEN = "left right up down stop go slow fast red blue green one two three four five open close door light"
WORDS = tuple(_SPOKEN.split())
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def say(line: str) -> None:
    """Writes a line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def spoken(text: str, generator: np.random.Generator) -> np.ndarray:
    """Returns the samples of a sentence."""
    pieces = [np.zeros(int(RATE * generator.uniform(0.02, 0.1)))]
    for letter in text:
        seconds = np.arange(int(RATE * generator.uniform(0.07, 0.11))) / RATE
        if letter == " ":
            pieces.append(np.zeros(seconds.size))
            continue
        row, column = divmod(LETTERS.index(letter), 6)
        pitch = generator.uniform(0.97, 1.03)
        tones = [400 * 1.25**row, 1500 * 1.25**column]
        sound = sum(np.sin(2 * np.pi * pitch * hertz * seconds) for hertz in tones) * np.hanning(seconds.size)
        pieces += [generator.uniform(0.1, 0.3) * sound, np.zeros(int(RATE * 0.02))]
    samples = np.concatenate(pieces)
    return np.clip(samples + 0.02 * generator.standard_normal(samples.size), -1, 1)


def write_sentences(folder: Path, count: int) -> None:
    """Writes WAV files and the JSON Lines that name them."""
    generator, lines = np.random.default_rng(0), []
    for number in range(count):
        text = " ".join(generator.choice(WORDS, generator.integers(1, 4)))
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes((spoken(text, generator) * 32767).astype("<i2").tobytes())
        lines.append(json.dumps({"audio": f"{number}.wav", "text": text}))
    (folder / "speech.jsonl").write_text("\n".join(lines) + "\n")


def learn(model: str, folder: Path, steps: int) -> None:
    """Trains one model, and prints its errors on sentences that are held out."""
    data = f"{folder}/speech.jsonl:sequence_length=24,max_seconds=3.2,validation_one_in=12"
    options = {"steps": steps, "batch_size": 16, "learner.schedule.peak": 2e-3}
    started = time.perf_counter()
    run = kn.train(model, data=data, set=options, run=folder / model, progress=False)
    seconds = time.perf_counter() - started
    rows = run.config.data.clone().build().held_out()
    said = [rows.record(index)["text"] for index in range(rows.num_rows)]
    batch = {name: np.stack([rows.row(index)[name] for index in range(rows.num_rows)]) for name in rows.fields}
    transcribe = jax.jit(lambda p, s, x, n: kn.functional(run.model, "transcribe")(p, s, x, n, 24)[0].ids)
    audio = batch["audio"], batch["audio_lengths"]
    greedy = [rows.text_of(ids) for ids in np.asarray(transcribe(run.params, run.state, *audio))]
    say(f"{model}: {steps} steps in {seconds:.0f} s; word error rate {word_error_rate(said, greedy):.1%} (greedy)")
    if hasattr(run.model.head, "logits"):
        hear = jax.jit(lambda p, s, x, n: kn.functional(run.model, "hear")(p, s, x, n)[0])
        logs, counts = hear(run.params, run.state, *audio)
        best = [prefix_beam(np.asarray(z)[:n], blank=z.shape[1] - 1)[0][0] for z, n in zip(logs, counts, strict=True)]
        say(f"{model}: word error rate {word_error_rate(said, map(rows.text_of, best)):.1%} (beam of 8)")
    for one, other in list(zip(said, greedy, strict=True))[:4]:
        say(f"  said {one!r}, heard {other!r}")


def main() -> None:
    """Learns with both heads."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else made).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        write_sentences(folder, SENTENCES)
        for model in ("conformer-tiny", "conformer-tiny-rnnt"):
            learn(model, folder, STEPS)


if __name__ == "__main__":
    main()
