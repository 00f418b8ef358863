"""What the quickstart learns against what its former self learns in the same time on the same machine.

Run on an idle machine: `python benchmarks/quickstart_curve.py [--keep FOLDER]`. Trains the shipped quickstart, then the
former one (AdamW, projections apart, layers in a loop), its schedule spread over as many steps as fit the time that the
first took from its first step to its last evaluation. Prints one JSON object: nats per byte over all held-out files,
seconds, and both curves. Exit code 1 where the shipped one ends above LIMIT or isn't ahead.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

#: Nats per byte over all held-out files, after 170 seconds of two cores.
LIMIT = 1.35
#: Updates from which the former quickstart's pace is taken; the first two, which still warm caches, don't count.
PACE_STEPS = 30
FORMER = (
    "--set=model=llama-tiny",
    "--modify=optimizer:name=adamw",
    "--set=learner.schedule.peak=5e-3",
    "--set=learner.schedule.final_fraction=0.1",
)


def train(run: Path, *arguments: str) -> list[dict[str, Any]]:
    """Returns the events of a run of the quickstart in a process of its own, as `nox -s quickstart` starts it."""
    command = [sys.executable, "-m", "kanawa.cli", "train", "quickstart", "--run", str(run), *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Returns the events of one kind, in order."""
    return [event for event in events if event["event"] == kind]


def seconds(events: list[dict[str, Any]]) -> float:
    """Returns what steps, evaluations and saves between them took: from before the first to after the last."""
    steps, evaluations = of_kind(events, "step"), of_kind(events, "eval")
    return evaluations[-1]["clock"] - steps[0]["clock"] + statistics.median(step["seconds"] for step in steps)


def former(folder: Path, budget: float) -> list[dict[str, Any]]:
    """Returns the events of the former quickstart over `budget` seconds, its schedule spread over them."""
    tried = train(folder / "pace", *FORMER, f"--steps={PACE_STEPS}", "--set=learner.schedule.decay_steps=350")
    pace = statistics.median(step["seconds"] for step in of_kind(tried, "step")[2:])
    final = of_kind(tried, "eval")[-1]["clock"] - of_kind(tried, "step")[-1]["clock"]
    # Evaluations on the way look at a part of what the final one does, which is the larger part of the difference.
    count = int((budget - final) / pace)
    schedule = (f"--set=learner.schedule.decay_steps={count}", f"--set=learner.schedule.warmup_steps={count // 7}")
    return train(folder / "former", *FORMER, f"--steps={count}", *schedule)


def result(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns what is worth keeping of a run; both figures of an evaluation are nats per byte."""
    evaluations = of_kind(events, "eval")
    return {
        "steps": len(of_kind(events, "step")),
        "seconds": seconds(events),
        "nats_per_byte": evaluations[-1]["nats_per_byte"],
        "trigram_nats_per_byte": evaluations[-1]["trigram_nats_per_byte"],
        "evaluations": [[event["step"], event["nats_per_byte"]] for event in evaluations],
        "curve": [[event["step"], event["nats_per_byte"]] for event in of_kind(events, "step")],
        "versions": of_kind(events, "run_started")[0]["versions"],
    }


def main() -> int:
    """Trains both and prints what they reached; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="folder to leave the runs in; it must not hold runs yet")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        shipped = result(train(folder / "shipped"))
        before = result(former(folder, shipped["seconds"]))
    ahead = shipped["nats_per_byte"] < before["nats_per_byte"]
    sys.stdout.write(json.dumps({"limit": LIMIT, "shipped": shipped, "former": before}, indent=2) + "\n")
    return 0 if ahead and shipped["nats_per_byte"] <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
