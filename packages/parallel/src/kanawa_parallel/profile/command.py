"""`kanawa profile RUN`: the verb's arguments, and what it prints."""

import argparse
from pathlib import Path
from typing import Any

from kanawa.plugins import Command

_EXAMPLE = """kanawa train quickstart --steps 30 --profile steps=20:25 --run runs/profiled
kanawa profile runs/profiled
kanawa profile runs/profiled --on cpu
kanawa profile runs/profiled --json"""


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="profile",
        help="say where the time of recorded steps went: modules, kinds of work, waits for the host",
        configure=configure,
        run=run,
        example=_EXAMPLE,
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    from kanawa.cli.arguments import json_argument

    parser.add_argument("run_directory", metavar="RUN", help="a run that trained with --profile steps=FIRST:LAST")
    parser.add_argument("--on", metavar="TARGET", help="what it ran on: puts the planner's estimate beside each module")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="modules to show (default: 20)")
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Reads the newest trace of the run and prints its account; returns 0."""
    import kanawa as kn
    from kanawa.cli.output import write, write_json
    from kanawa.status import stage, stage_lines

    from kanawa_parallel.plan.read.attribution import module_paths
    from kanawa_parallel.profile.account import account
    from kanawa_parallel.profile.trace import find_trace, read_trace

    folder = Path(args.run_directory)
    with stage_lines():
        opened = kn.open(str(folder))
        file = find_trace(folder)
        with stage(f"reading {file.name}"):
            times = account(read_trace(file), module_paths(opened.model))
        planned = None if args.on is None else kn.plan(opened.config, on=args.on, quick=True, suggestions=False)
    if args.json:
        plan = None if planned is None else planned.as_json()
        write_json({"run": str(folder), "trace": str(file), **times.as_json(), "plan": plan})
    else:
        write(text(times, planned, args.top))
    return 0


def text(times: Any, planned: Any, most: int) -> str:
    """Returns the account of recorded steps as tables, with the plan's seconds where there is one."""
    from kanawa_parallel.plan.report.units import format_seconds
    from kanawa_parallel.plan.show.render import format_table

    total = sum(times.by_module.values()) or 1.0
    lines = [
        f"{times.steps} runs of {times.program} on {times.devices} device{'s' if times.devices > 1 else ''}: "
        f"{format_seconds(times.step_seconds)} a step, {times.idle_share:.1%} of it with no device computing"
    ]
    if planned is not None and planned.step_seconds:
        ratio = times.step_seconds / planned.step_seconds
        lines.append(f"planned on {planned.target}: {format_seconds(planned.step_seconds)}, measured {ratio:.2f} of it")
    estimates = {} if planned is None else {row.path: row.seconds for row in planned.modules}
    rows = [
        [path, format_seconds(seconds), f"{seconds / total:.1%}"]
        + ([format_seconds(estimates[path]) if path in estimates else "-"] if planned is not None else [])
        for path, seconds in list(times.by_module.items())[:most]
    ]
    head = ["module", "a step", "share"] + (["planned"] if planned is not None else [])
    lines.append(format_table("by module, on all threads or streams of a device together", head, rows))
    for title, counted in (("by kind of work", times.by_kind), ("by phase", times.by_phase)):
        shares = [(name, format_seconds(seconds), f"{seconds / total:.1%}") for name, seconds in counted.items()]
        lines.append(format_table(title, ("", "a step", "share"), shares))
    slowest = [(name, path, format_seconds(seconds)) for name, path, seconds in times.longest]
    lines.append(format_table("longest instructions", ("instruction", "module", "a step"), slowest))
    if times.gaps:
        waits = [(gap.host or "-", format_seconds(gap.seconds)) for gap in times.gaps]
        lines.append(format_table("longest waits of the devices", ("the host was in", "seconds"), waits))
    return "\n".join(lines)
