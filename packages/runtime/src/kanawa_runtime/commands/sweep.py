"""`kanawa sweep`: one run for each point of a grid and each seed, and a table that ranks the points."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kanawa.cli.arguments import composition_arguments, json_argument
from kanawa.errors import UsageError
from kanawa.guarded_read import UnreadableFileError, guarded_json
from kanawa.plugins import Command

if TYPE_CHECKING:
    from kanawa_runtime.report.ranking import Ranked

#: What a sweep was asked for, in its folder.
RECORD = "sweep.json"
_MOST_BYTES = 1 << 20
_OPENING, _CLOSING = "([{", ")]}"


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What is varied, and what all runs have in common, as `kanawa train` takes it."""

    experiment: str
    grid: Mapping[str, Sequence[str]]
    seeds: Sequence[int]
    on: str | None = None
    data: str | None = None
    steps: int | None = None
    modify: Sequence[str] = ()
    set: Sequence[str] = ()

    def arguments(self, point: Mapping[str, str], seed: int) -> list[str]:
        """Returns the arguments of a run, its folder left out."""
        single = {"--on": self.on, "--data": self.data, "--steps": self.steps}
        words = [word for name, value in single.items() if value is not None for word in (name, str(value))]
        words += [word for modifier in self.modify for word in ("--modify", modifier)]
        settings = [*self.set, *(f"{path}={value}" for path, value in point.items()), f"seed={seed}"]
        return [self.experiment, *words, *(word for setting in settings for word in ("--set", setting))]

    def points(self) -> Iterator[dict[str, str]]:
        """Yields the grid's points: a value for each path."""
        for values in itertools.product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))

    def name_of(self, point: Mapping[str, str], seed: int) -> str:
        """Returns the folder of a run: "peak=0.001,seed=0", paths in full where their ends are the same."""
        ends = [path.rpartition(".")[2] for path in point]
        named = ends if len(set(ends)) == len(ends) else list(point)
        parts = [f"{name}={value}" for name, value in zip(named, point.values(), strict=True)]
        return ",".join([*parts, f"seed={seed}"]).replace("/", "_")


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="sweep",
        help="train every point of a grid with several seeds, and rank them",
        configure=configure,
        run=run,
        example=(
            "kanawa sweep quickstart --grid learner.schedule.peak=1e-3,3e-3 --seeds 2 --steps 100 --run runs/rates\n"
            "kanawa sweep quickstart --grid batch_size=8,16 --run runs/sizes --with 'slurm --queue long'\n"
            "kanawa sweep runs/rates\n"
            "a point that fails doesn't stop the others; the same command again trains what is missing"
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("experiment", metavar="EXPERIMENT", help="what `train` takes; or a sweep's folder, to rank it")
    composition_arguments(parser)
    parser.add_argument(
        "--grid", action="append", default=[], metavar="path=A,B,…", help="values of a config field; repeat for more"
    )
    parser.add_argument("--seeds", default="1", metavar="N|I,J,…", help="how many, from 0 on, or which (default: 1)")
    parser.add_argument("--run", dest="directory", metavar="DIR", help="folder of the runs (default: runs/NAME-sweep)")
    parser.add_argument("--steps", type=int, metavar="N", help="updates of each run")
    parser.add_argument(
        "--with", dest="launch", metavar="'LAUNCHER …'", help="submit each run by `kanawa launch`, with these arguments"
    )
    parser.add_argument(
        "--metric", metavar="NAME", help="rank by this key of `report --json` (default: reward, else eval_loss)"
    )
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Trains or submits what is missing and writes the table; returns 0, or the exit code of the first that failed."""
    from kanawa.cli.output import write_json

    ranks_only = Path(args.experiment, RECORD).exists()
    folder = Path(args.experiment if ranks_only else args.directory or f"runs/{Path(args.experiment).name}-sweep")
    sweep = read_sweep(folder) if ranks_only else _asked(args)
    code = 0 if ranks_only else _train(sweep, folder, args.launch)
    from kanawa_runtime.report.ranking import rank

    runs = [(point, [folder / sweep.name_of(point, seed) for seed in sweep.seeds]) for point in sweep.points()]
    ranked = rank(runs, args.metric)
    if args.json:
        write_json({"sweep": str(folder), "points": [dataclasses.asdict(one) for one in ranked]})
    else:
        write_ranking(ranked)
    return code


def read_sweep(folder: Path) -> Sweep:
    """Returns the sweep of a folder; raises UsageError for a record that is none."""
    try:
        return Sweep(**guarded_json(folder / RECORD, folder, most=_MOST_BYTES))
    except UnreadableFileError:
        raise
    except (OSError, ValueError, TypeError) as error:
        message = f"{folder / RECORD} is no record of a sweep: {error!r}"
        raise UsageError(message) from None


def parse_grid(text: str) -> tuple[str, list[str]]:
    """Returns the path and the values of "path=A,B"; commas inside of brackets separate nothing. Raises UsageError."""
    path, equals, listed = text.partition("=")
    values, depth = [""], 0
    for letter in listed:
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if letter == "," and depth == 0:
            values.append("")
        else:
            values[-1] += letter
    values = [value.strip() for value in values]
    if not equals or not path.strip() or not all(values) or len(set(values)) != len(values):
        message = f"--grid is {text!r}, expected PATH=A,B,… with values that differ: learner.schedule.peak=1e-3,3e-3"
        raise UsageError(message)
    return path.strip(), values


def parse_seeds(text: str) -> list[int]:
    """Returns the seeds of "3" (0, 1 and 2) or of "5,7"; raises UsageError."""
    numbers = [part.strip() for part in text.split(",")]
    if not all(number.isdecimal() for number in numbers) or len(set(numbers)) != len(numbers) or numbers == ["0"]:
        message = f"--seeds is {text!r}, expected how many, such as 3, or which, such as 0,1,5"
        raise UsageError(message)
    return [int(number) for number in numbers] if len(numbers) > 1 else list(range(int(numbers[0])))


def write_ranking(ranked: Sequence[Ranked]) -> None:
    """Writes the ranked points as a table."""
    from kanawa.cli.output import write_table

    head = [*(ranked[0].values if ranked else ()), "mean", "deviation", "runs", ""]
    rows = []
    for one in ranked:
        missing = ", ".join(f"{name}: {what}" for name, what in one.missing.items())
        mean = "-" if one.mean is None else f"{one.mean:.5g}"
        deviation = "-" if one.deviation is None else f"{one.deviation:.2g}"
        rows.append([*one.values.values(), mean, deviation, str(len(one.scores)), missing])
    write_table(head, rows)


def _asked(args: argparse.Namespace) -> Sweep:
    grid = dict(parse_grid(text) for text in args.grid)
    if len(grid) != len(args.grid):
        message = "--grid names one path twice; give all its values at once"
        raise UsageError(message)
    seeds = parse_seeds(args.seeds)
    if not grid and len(seeds) == 1:
        message = "a sweep of one run is `kanawa train`: give --grid path=A,B or --seeds N"
        raise UsageError(message)
    _check_set_once(grid, [text.partition("=")[0].strip() for text in args.set])
    return Sweep(args.experiment, grid, seeds, args.on, args.data, args.steps, args.modify, args.set)


def _check_set_once(grid: Mapping[str, Sequence[str]], settings: Sequence[str]) -> None:
    """Raises UsageError for a path that the grid and something else set: the points' runs would be the same."""
    if "seed" in (*grid, *settings):
        message = (
            "a sweep's seeds come from --seeds, a number of them or a list such as 0,1,5; --grid and --set leave it"
        )
        raise UsageError(message)
    if twice := sorted({*grid} & {*settings}):
        message = f"{', '.join(twice)} is set by --grid and by --set; leave out one of them"
        raise UsageError(message)


def _train(sweep: Sweep, folder: Path, launch: str | None) -> int:
    """Trains every run that isn't done, one after the other, or submits it; returns the first exit code that isn't 0.

    Raises UsageError where the folder has another sweep, or a point isn't a config.
    """
    from kanawa.cli.output import write_message

    _check(sweep)
    record = dataclasses.asdict(sweep)
    if (folder / RECORD).exists() and dataclasses.asdict(read_sweep(folder)) != record:
        message = f"{folder} has another sweep ({RECORD}); give this one a folder of its own with --run"
        raise UsageError(message)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    runs = [(point, seed) for point in sweep.points() for seed in sweep.seeds]
    first = 0
    for number, (point, seed) in enumerate(runs, 1):
        name = sweep.name_of(point, seed)
        if launch is None and _is_done(folder / name):
            continue
        write_message(f"run {number} of {len(runs)}: {name}")
        code = _run_one(sweep, point, seed, folder / name, launch)
        if code:
            write_message(f"{name} ended with exit code {code}; its log is {folder / name}.log")
        first = first or code
    return first


def _check(sweep: Sweep) -> None:
    """Raises what composing the first and the last point raises: a misspelt path must not fail a hundred times."""
    from kanawa.composition.experiment import compose

    points = list(sweep.points())
    for point in points[:: max(1, len(points) - 1)]:
        overrides = [*sweep.set, *(f"{path}={value}" for path, value in point.items())]
        compose(sweep.experiment, target=sweep.on, modifiers=sweep.modify, overrides=overrides, data=sweep.data)


def _run_one(sweep: Sweep, point: Mapping[str, str], seed: int, run_folder: Path, launch: str | None) -> int:
    asked = [*sweep.arguments(point, seed), "--run", str(run_folder)]
    verb = ["train"] if launch is None else ["launch", *shlex.split(launch), "--no-watch"]
    with Path(f"{run_folder}.log").open("a", encoding="utf-8") as log:
        # -P: a file in the current folder must not stand in for a library.
        process = [sys.executable, "-P", "-m", "kanawa.cli", *verb, *asked]
        return subprocess.run(process, stdout=log, stderr=subprocess.STDOUT, check=False).returncode


def _is_done(run_folder: Path) -> bool:
    from kanawa_runtime.runs.events import read_events

    if not (run_folder / "events.jsonl").exists():
        return False
    ends = [event for event in read_events(run_folder / "events.jsonl") if event.get("event") == "run_ended"]
    return bool(ends) and ends[-1].get("outcome") == "done"
