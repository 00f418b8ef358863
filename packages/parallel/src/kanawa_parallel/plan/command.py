"""`kanawa plan EXPERIMENT --on T[,T2…]`: the verb's arguments, and the plan of each target."""

import argparse
import dataclasses
import os
from pathlib import Path
from typing import Any

from kanawa.errors import CompositionError, KanawaError, UsageError
from kanawa.plugins import Command
from kanawa.plugins.devices import OWN

_EXAMPLE = """kanawa plan quickstart --on cpu-8
kanawa plan llama2-7b --on v5p-512 --modify remat:policy=full
kanawa plan llama2-7b --on v5p-512,h100-256 --quick
kanawa plan llama2-7b --on v5p-512 --search --fix tensor=1 --verify 1
kanawa plan llama2-7b --on v5p-512,h100-256 --compare --prices prices.toml
kanawa plan llama2-70b --on h100-10240 --quick --set batch_size=10240 --goodput --assume spares=4
kanawa plan quickstart --on cpu-8 --picture mesh.svg --json"""


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="plan",
        help="compile the real step for hardware that isn't here: fits or not, memory, FLOPs, traffic, time, MFU",
        configure=configure,
        run=run,
        example=_EXAMPLE,
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    from kanawa.cli.arguments import experiment_arguments, json_argument

    experiment_arguments(parser)
    parser.add_argument("--serve", action="store_true", help="plan a decoding step, and room for its caches")
    parser.add_argument("--quick", action="store_true", help="estimate in seconds, without compiling")
    parser.add_argument("--search", action="store_true", help="search the quickest mesh, remat and microbatches")
    parser.add_argument(
        "--fix", action="append", default=[], metavar="NAME=VALUE", help="fix this in a search: tensor=1"
    )
    parser.add_argument("--verify", type=int, metavar="N", help="compile the best N of a search (default: 2)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="time for a search's estimates (default: 600)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a search's winner as JSON")
    parser.add_argument("--compare", action="store_true", help="rank the targets by time and by cost")
    parser.add_argument("--prices", type=Path, metavar="FILE", help="TOML or JSON: price of a chip and hour by device")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the mesh and what is sharded where")
    parser.add_argument("--save", type=Path, metavar="DIR", help="save the compiled program, for a warm start of train")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="save the compiler's texts")
    parser.add_argument(
        "--goodput", action="store_true", help="simulate a month in which hosts fail; suggest intervals"
    )
    parser.add_argument(
        "--assume",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="assumptions of that month: mtbf_hours=5000, spares=4, tier=disk:every=50,blocking=1,write=9,restore=9",
    )
    parser.add_argument(
        "--measured", type=Path, metavar="FILE", help="times of a run for that month, from `kanawa report RUN --json`"
    )
    parser.add_argument("--no-suggestions", action="store_true", help="don't search for changes that would make it fit")
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Plans for each target; one target in this process, several each in one of its own."""
    from kanawa.status import stage_lines

    with stage_lines():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    targets = [name.strip() for name in (args.on or "").split(",") if name.strip()]
    if not targets:
        message = "plan needs a target: --on DEVICE-COUNT, such as --on cpu-8; several are separated by commas"
        raise UsageError(message)
    _refuse_early(args)
    # Before the imports below: the first of them that asks JAX for a device starts all its platforms.
    _keep_off_accelerators()
    from kanawa_parallel.plan.goodput.command import needs_plan
    from kanawa_parallel.plan.programs.decode import DECODE
    from kanawa_parallel.plan.programs.request import PlanRequest, missing_compilers
    from kanawa_parallel.plan.report.prices import prices_for

    program = DECODE if args.serve else "train_step"
    request = PlanRequest(args.experiment, tuple(args.modify), tuple(args.set), args.data, program)
    compositions = request.composed(targets)
    prices = prices_for(args.prices, compositions)
    if args.search:
        from kanawa_parallel.plan.search.command import run_search

        return run_search(args, request, targets, prices)
    if args.goodput and not needs_plan(args):
        return _goodput(args, [(composition, None) for composition in compositions])
    missing = [] if args.quick else missing_compilers(compositions)
    if missing:
        raise CompositionError(missing)
    if args.quick or len(compositions) == 1:
        plans = [_planned(args, request, each, prices, alone=len(compositions) == 1) for each in compositions]
    else:
        plans = [_planned_apart(args, request, each.required_target().selector) for each in compositions]
    failed = any("error" in plan for plan in plans)
    if args.goodput and not failed:
        seconds = [plan["step_seconds"] for plan in plans]
        return _goodput(args, list(zip(compositions, seconds, strict=True)))
    _write(args, plans)
    return 1 if failed else 0


def _planned(args: argparse.Namespace, request: Any, composition: Any, prices: Any, alone: bool) -> dict[str, Any]:
    """Returns one target's plan, made in this process; where that fails beside others the record has "error"."""
    from kanawa_parallel.plan.show.picture import picture
    from kanawa_parallel.plan.targets.plan import finished_report, plan_target
    from kanawa_parallel.plan.targets.suggest import with_suggestions

    target = composition.required_target()
    dump = None if args.dump is None else args.dump / target.selector
    try:
        planned = plan_target(composition, request.program, args.quick, dump)
        if not args.quick and not args.no_suggestions:
            planned = dataclasses.replace(planned, report=with_suggestions(planned.report, composition, request))
        report = finished_report(planned, composition, prices)
        if args.picture:
            args.picture.write_text(picture(composition), encoding="utf-8")
        if args.save:
            from kanawa_parallel.plan.compiled.compilation import save

            save(planned.compilation, args.save)
    except KanawaError as error:
        if alone:
            raise
        return {"experiment": composition.name, "target": target.selector, "error": str(error)}
    plan: dict[str, Any] = report.as_json()
    return plan


def _planned_apart(args: argparse.Namespace, request: Any, target: str) -> dict[str, Any]:
    """Returns one target's plan, made in a process of its own with this command's flags."""

    flags = ["--no-suggestions"] if args.no_suggestions else []
    for name in ("prices", "dump", "save"):
        flags += [f"--{name}", str(getattr(args, name))] if getattr(args, name) is not None else []
    if args.picture is not None:
        flags += ["--picture", str(args.picture.with_name(f"{args.picture.stem}-{target}{args.picture.suffix}"))]
    plan: dict[str, Any] = request.planned_apart(target, flags=flags)
    return plan


def _write(args: argparse.Namespace, plans: list[dict[str, Any]]) -> None:
    from kanawa.cli.output import write, write_json

    if args.json:
        write_json(plans if len(plans) > 1 else plans[0])
        return
    from kanawa_parallel.plan.report.report import Report
    from kanawa_parallel.plan.rollout_step import render_rollouts
    from kanawa_parallel.plan.serving_room import render_room
    from kanawa_parallel.plan.show.render import comparison, render

    reports = [Report.from_json(plan) for plan in plans if "error" not in plan]
    texts = [*map(render, reports), *(f"{plan['target']}: {plan['error']}" for plan in plans if "error" in plan)]
    texts += [f"{plan['target']}{render_rollouts(plan['rollouts'])}" for plan in plans if "rollouts" in plan]
    texts += [f"{plan['target']}{render_room(plan['serving'])}" for plan in plans if "serving" in plan]
    write("\n\n".join(texts))
    if reports and (args.compare or len(reports) > 1):
        write(comparison(reports))


def _goodput(args: argparse.Namespace, planned: list[tuple[Any, float | None]]) -> int:
    """Simulates a month for each target and writes it; returns 0."""
    from kanawa.cli.output import write, write_json

    from kanawa_parallel.plan.goodput.command import simulated
    from kanawa_parallel.plan.goodput.show import as_json, render

    months = [simulated(args, composition, seconds) for composition, seconds in planned]
    if args.json:
        write_json([*map(as_json, months)] if len(months) > 1 else as_json(months[0]))
    else:
        write("\n\n".join(map(render, months)))
    return 0


def _keep_off_accelerators() -> None:
    """Restricts JAX to this machine's processor, unless the user chose platforms.

    A plan needs no accelerator, and a compiler's wheels fail to start without the driver.
    """
    if os.environ.get("JAX_PLATFORMS"):
        return
    import jax

    os.environ["JAX_PLATFORMS"] = OWN
    # Where something has imported JAX already, it has read its variables.
    jax.config.update("jax_platforms", OWN)


def _refuse_early(args: argparse.Namespace) -> None:
    """Raises UsageError for what can't be done as asked, before minutes go into a plan."""
    from kanawa_parallel.plan.goodput.command import refuse_without_goodput

    refuse_without_goodput(args)
    for excluded, names, why in (
        (args.quick, ("save", "dump"), "a quick plan compiles nothing, so nothing can be saved; omit --quick"),
        (True, ("fix", "verify", "budget", "write"), "only a search takes this; add --search, or omit it"),
    ):
        asked = [f"--{name}" for name in names if excluded and getattr(args, name) not in (None, [])]
        if asked and not args.search:
            message = f"{' and '.join(asked)}: {why}"
            raise UsageError(message)
    for flag, path, example in (("--write", args.write, "best.json"), ("--picture", args.picture, "mesh.svg")):
        if path is not None and path.is_dir():
            message = f"{flag} {path} is a folder, expected a file such as {path / example}"
            raise UsageError(message)
        if path is not None and not path.parent.is_dir():
            message = f"{flag} {path}: there is no folder {path.parent}; make it first"
            raise UsageError(message)
