"""`kanawa eval`: the held-out loss of checkpoints, and their scores on tasks, side by side."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kanawa.cli.arguments import DATA_HELP
from kanawa.cli.output import write, write_message, write_table
from kanawa.errors import UsageError
from kanawa.plugins import Command

if TYPE_CHECKING:
    from kanawa_runtime.evaluate.results import TaskResult


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="eval",
        help="evaluate runs on held-out data, on other data, or on tasks",
        configure=configure,
        run=run,
        example=(
            "kanawa eval runs/quickstart --json\n"
            "kanawa eval downloads/my-model --data 'mytext/**/*.txt'\n"
            "kanawa eval runs/a runs/b --tasks tasks/words.yaml"
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    runs = "a run directory, or a Hugging Face folder; several are compared"
    parser.add_argument("run_directories", metavar="RUN", nargs="+", help=runs)
    about = f"{DATA_HELP}; all of what files hold is read. Repeat for several"
    parser.add_argument("--data", action="append", metavar="[NAME=]DATA", help=about)
    tasks = "task files, in YAML with the keys of lm-eval's simple tasks; see the page on evaluation"
    parser.add_argument("--tasks", nargs="+", metavar="FILE", help=tasks)
    parser.add_argument("--limit", type=int, metavar="N", help="of each task, the first N documents")
    samples = "write what each document was asked, answered and scored to this JSON Lines file"
    parser.add_argument("--samples", metavar="FILE", help=samples)
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint to use (default: the newest)")
    parser.add_argument("--on", metavar="TARGET", help="target to run on (default: this machine)")
    parser.add_argument("--set", action="append", metavar="PATH=VALUE", help="override a config value")
    parser.add_argument("--json", action="store_true", help="write JSON for a machine to read")


def run(args: argparse.Namespace) -> int:
    """Evaluates; returns 0."""
    _check(args)
    return _on_tasks(args) if args.tasks else _on_data(args)


def _check(args: argparse.Namespace) -> None:
    """Raises UsageError for arguments that don't go together."""
    if args.tasks and args.data:
        message = "--tasks and --data exclude each other: a task names its own data; evaluate one after the other"
        raise UsageError(message)
    needs_tasks = [name for name in ("limit", "samples") if getattr(args, name) is not None]
    if needs_tasks and not args.tasks:
        message = f"--{needs_tasks[0]} is for tasks; add --tasks FILE.yaml"
        raise UsageError(message)
    if args.limit is not None and args.limit < 1:
        message = f"--limit is {args.limit}, expected at least 1"
        raise UsageError(message)
    from kanawa.contracts import is_address

    places = [name if is_address(name) else str(Path(name).resolve()) for name in args.run_directories]
    twice = next((name for i, name in enumerate(args.run_directories) if places[i] in places[:i]), None)
    if twice is not None:
        message = f"{twice} is named twice; a model compared with itself differs in nothing"
        raise UsageError(message)
    for place, name in zip(places[1:], args.run_directories[1:], strict=True):
        if not is_address(name) and not Path(place, "config.json").exists():
            # What is wrong with it is said before the first model is evaluated, which may take hours.
            _opened(args, name)


def _opened(args: argparse.Namespace, directory: str) -> Any:
    import kanawa as kn

    return kn.open(directory, on=args.on, set=args.set or (), step=args.step)


# --- losses ------------------------------------------------------------------------------------------------------


def _on_data(args: argparse.Namespace) -> int:
    from kanawa_runtime.data.other_data import named_data

    named = named_data(args.data or ())
    records = {}
    for directory in args.run_directories:
        opened = _opened(args, directory)
        if len(named) < 2:
            records[directory] = opened.evaluate(data=next(iter(named.values()), None)).as_json()
        else:
            records[directory] = {name: opened.evaluate(data=data).as_json() for name, data in named.items()}
    one = next(iter(records.values())) if len(records) == 1 else None
    if args.json:
        write(json.dumps(records if one is None else one))
    elif one is not None:
        write(_shown_sets(one, several=len(named) > 1))
    else:
        write("\n".join(f"{name}\n{_shown_sets(each, several=len(named) > 1)}" for name, each in records.items()))
    return 0


def _shown_sets(record: Mapping[str, Any], *, several: bool) -> str:
    if not several:
        return _shown(record)
    return "\n".join(f"{name}\n{_shown(one)}" for name, one in record.items())


def _shown(record: Mapping[str, Any]) -> str:
    return "\n".join(f"{key:>15}  {value}" for key, value in record.items())


# --- tasks -------------------------------------------------------------------------------------------------------


def _on_tasks(args: argparse.Namespace) -> int:
    from kanawa.local_path import local_path

    from kanawa_runtime.evaluate.compare import METHOD, differences
    from kanawa_runtime.evaluate.results import write_records

    samples = None if args.samples is None else local_path(args.samples, "--samples")
    _check_samples(samples)
    results: dict[str, Sequence[TaskResult]] = {}
    steps = {}
    for directory in args.run_directories:
        opened = _opened(args, directory)
        results[directory] = opened.evaluate_tasks(args.tasks, limit=args.limit)
        steps[directory] = opened.step
    if samples is not None:
        count = write_records(samples, results)
        write_message(f"{count} documents are written to {samples}")
    apart = differences(results) if len(results) > 1 else []
    if args.json:
        runs = [
            {"run": name, "step": steps[name], "tasks": [result.as_json() for result in each]}
            for name, each in results.items()
        ]
        compared = {"runs": runs, "differences": [one.as_json() for one in apart], "method": METHOD}
        write(json.dumps(runs[0] if len(runs) == 1 else compared))
        return 0
    write_table(*_table(results))
    for directory, each in results.items():
        for result in each:
            if result.truncated:
                where = f"{result.truncated} requests of {result.task} are longer than {directory} takes"
                write_message(f"{where}: their oldest tokens were cut off")
    if apart:
        write("")
        rows = [
            [one.task, one.metric, one.model, f"{one.value:+.4f}", _interval(one.low, one.high), _clear(one.is_clear)]
            for one in apart
        ]
        write_table(["task", "metric", f"against {args.run_directories[0]}", "difference", "interval", ""], rows)
        write(METHOD)
    return 0


def _check_samples(samples: Path | None) -> None:
    """Raises UsageError before a long evaluation, not after it."""
    if samples is not None and (samples.is_dir() or not samples.parent.is_dir()):
        message = f"--samples {samples}: expected a file in a folder that is there, such as samples.jsonl"
        raise UsageError(message)


def _table(results: Mapping[str, Sequence["TaskResult"]]) -> tuple[list[str], list[list[str]]]:
    head = ["task", "documents", "metric", "", *results]
    first = next(iter(results.values()))
    rows = []
    for index, task in enumerate(first):
        for metric, score in task.scores.items():
            cells = []
            for each in results.values():
                one = each[index].scores[metric]
                error = "" if one.standard_error is None else f" ± {one.standard_error:.4f}"
                cells.append(f"{one.value:.4f}{error}")
            better = "higher" if score.higher_is_better else "lower"
            rows.append([task.task, f"{task.documents:,}", metric, f"{better} is better", *cells])
    return head, rows


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{low:+.4f}, {high:+.4f}]"


def _clear(is_clear: bool) -> str:
    return "leaves out 0" if is_clear else "holds 0"
