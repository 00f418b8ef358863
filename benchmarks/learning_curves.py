"""DPO's margin, a reward model's accuracy and GRPO's reward as they rise, on tasks that are made here.

    python benchmarks/learning_curves.py docs/images

Writes preferences.svg and rollouts.svg into the folder. A prompt is a letter, and the better completion repeats it; no
pair is trained on twice. For GRPO it is the shipped `grpo-demo`: a tiny model copies two letters.
"""

import argparse
import json
import pathlib
import random
import re
import tempfile
from typing import Any

import kanawa as kn
from kanawa_runtime.report.parts import asset
from kanawa_runtime.report.plot import HALF, Series, line_plot, smoothed
from trl_folder import write_model

STEPS, BATCH = 60, 8
LETTERS = "abcdefgh"


def write_pairs(file: pathlib.Path) -> None:
    """Writes pairs whose chosen completion repeats the letter of the prompt, and the rejected one another."""
    rng = random.Random(0)
    with file.open("w") as out:
        for _ in range(STEPS * BATCH * 16):
            good, bad = rng.sample(LETTERS, 2)
            pair = {"prompt": good, "chosen": good * rng.randint(1, 3), "rejected": bad * rng.randint(1, 3)}
            out.write(json.dumps(pair) + "\n")


def steps_of(run: pathlib.Path) -> list[dict[str, Any]]:
    """Returns a run's step events."""
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event for event in events if event["event"] == "step"]


def preferences(folder: pathlib.Path, modify: str) -> list[dict[str, Any]]:
    """Returns the steps of a tiny Llama that learns from the pairs."""
    sets = {
        "batch_size": BATCH, "data.sequence_length": 64, "data.epochs": 1, "evaluation.every_steps": 1000,
        "learner.schedule": kn.component("schedules", "constant").Config(peak=2e-3),
    }  # fmt: skip
    run, data = folder / modify.partition(":")[0], str(folder / "pairs.jsonl")
    kn.train(str(folder / "model"), run=run, steps=STEPS, data=data, modify=modify, set=sets, progress=False)
    return steps_of(run)


def picture(lines: dict[str, list[float]], label: str) -> str:
    """Returns a plot by completed updates that stands by itself, its colours with it."""
    series = [
        Series(name, smoothed([(float(step), value) for step, value in enumerate(values, 1)]), number)
        for number, (name, values) in enumerate(lines.items(), 1)
    ]
    drawn = line_plot(series, x_label="completed updates", y_label=label, size=HALF)
    # Without the page's script, its values only add to the size.
    plain = re.sub(r" data-plot='[^']*'", "", drawn)
    style = f"<style>{asset('colours.css', 'plot.css')}</style>"
    width, height = HALF
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    return re.sub(r"<svg ([^>]*)>", lambda found: f"{opening}{found[1]}>{style}", plain, count=1)


def main() -> None:
    """Trains, and writes both pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("into", type=pathlib.Path, help="folder of the pictures")
    into = parser.parse_args().into
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        write_model(folder / "model", vocab=384, width=64, layers=2, heads=4, kv_heads=2)
        write_pairs(folder / "pairs.jsonl")
        dpo, reward = preferences(folder, "dpo:beta=0.5"), preferences(folder, "reward-model")
        kn.train("grpo-demo", run=folder / "grpo", progress=False)
        grpo = [step["reward"] for step in steps_of(folder / "grpo")]
    lines = {
        "margin of DPO": [step["metrics"]["loss.margin"] for step in dpo],
        "accuracy of the reward model": [step["metrics"]["loss.accuracy"] for step in reward],
    }
    (into / "preferences.svg").write_text(picture(lines, "margin, accuracy"))
    (into / "rollouts.svg").write_text(picture({"reward": grpo}, "mean reward"))


if __name__ == "__main__":
    main()
