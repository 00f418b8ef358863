"""`kanawa plan EXPERIMENT --on T[,T2…]`: the verb's arguments, and what is done for each target."""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kanawa.errors import CompositionError, KanawaError, UsageError
from kanawa.plugins import Command

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
    parser.add_argument("--search", action="store_true", help="look for the quickest mesh, remat and microbatches")
    parser.add_argument(
        "--fix", action="append", default=[], metavar="NAME=VALUE", help="keep this in a search: tensor=1"
    )
    parser.add_argument("--verify", type=int, metavar="N", help="compile the best N of a search (default: 2)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="of a search's estimates (default: 600)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a search's winner as JSON")
    parser.add_argument("--compare", action="store_true", help="rank the targets by time and by cost")
    parser.add_argument("--prices", type=Path, metavar="FILE", help="TOML or JSON: price of a chip and hour by device")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the mesh and what is sharded where")
    parser.add_argument("--save", type=Path, metavar="DIR", help="keep the compiled program, for a warm start of train")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="keep the compiler's texts")
    parser.add_argument("--probe", action="store_true", help="measure this processor first, for a cpu target")
    parser.add_argument(
        "--goodput", action="store_true", help="simulate a month in which hosts fail; suggest intervals"
    )
    parser.add_argument(
        "--assume",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of that month: mtbf_hours=5000, spares=4, tier=disk:every=50,blocking=1,write=9,restore=9",
    )
    parser.add_argument(
        "--measured", type=Path, metavar="FILE", help="times of a run for that month, from `kanawa report RUN --json`"
    )
    parser.add_argument("--no-suggestions", action="store_true", help="don't look for changes that would make it fit")
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Plans for each target; one target in this process, several each in one of its own."""
    from kanawa.status import stage_lines

    with stage_lines():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from kanawa.cli.output import write, write_json

    targets = [name.strip() for name in (args.on or "").split(",") if name.strip()]
    if not targets:
        message = "plan needs a target: --on v5p-512, h100-256, trn2-1024 or cpu-8; several are separated by commas"
        raise UsageError(message)
    _refuse_early(args)
    from kanawa_parallel.plan.goodput.command import needs_plan, refuse_without_goodput

    refuse_without_goodput(args)
    # Before the imports below: the first of them that asks JAX for a device starts all its platforms.
    _stay_on_the_processor()
    from kanawa_parallel.plan.problems import compositions, missing_compilers

    if args.search:
        from kanawa_parallel.plan.search.command import run_search

        return run_search(args, targets)
    planned = compositions(args.experiment, targets, args.modify, args.set, args.data)
    if args.goodput and not needs_plan(args):
        return _goodput(args, [(composition, None) for composition in planned])
    missing = [] if args.quick else missing_compilers(planned)
    if missing:
        raise CompositionError(missing)
    prices = prices_for(args, planned)
    if args.quick:
        plans = [_quick(args, composition, prices, alone=len(planned) == 1) for composition in planned]
    elif len(planned) == 1:
        plans = [_plan(args, planned[0], prices).as_json()]
    else:
        plans = [in_own_process(args, composition.target.selector) for composition in planned]
    if args.serve:
        _add_room(planned, plans)
    failed = [plan for plan in plans if "error" in plan]
    if args.goodput and not failed:
        steps = [plan["step_seconds"] for plan in plans]
        return _goodput(args, list(zip(planned, steps, strict=True)))
    if args.json:
        write_json(plans if len(plans) > 1 else plans[0])
        return 1 if failed else 0
    from kanawa_parallel.plan.show.load import from_json
    from kanawa_parallel.plan.show.render import comparison, render

    reports = [from_json(plan) for plan in plans if plan not in failed]
    texts = [*map(render, reports), *(f"{plan['target']}: {plan['error']}" for plan in failed)]
    if args.serve:
        from kanawa_parallel.plan.serving_room import render_room

        texts += [f"{plan['target']}{render_room(plan['serving'])}" for plan in plans if "serving" in plan]
    write("\n\n".join(texts))
    if reports and (args.compare or len(reports) > 1):
        write(comparison(reports))
    return 1 if failed else 0


def _add_room(planned: Any, plans: list[Any]) -> None:
    """Adds to each plan of a decoding step what its target has room for; one made in its own process has it."""
    from kanawa_parallel.plan.serving_room import serving_room

    for composition, plan in zip(planned, plans, strict=True):
        if "error" not in plan and "serving" not in plan:
            plan["serving"] = serving_room(composition).as_json()


def _goodput(args: argparse.Namespace, planned: list[tuple[Any, float | None]]) -> int:
    """Simulates a month for each target and tells it; returns 0."""
    from kanawa.cli.output import write, write_json

    from kanawa_parallel.plan.goodput.command import text, told

    if args.json:
        months = [told(args, composition, seconds) for composition, seconds in planned]
        write_json(months if len(months) > 1 else months[0])
    else:
        write("\n\n".join(text(args, composition, seconds) for composition, seconds in planned))
    return 0


def _stay_on_the_processor() -> None:
    """Keeps JAX off this machine's accelerators, unless the user said which platforms to use.

    A plan needs none of them, and with the GPU compiler's wheels but without a driver starting one fails.
    """
    if os.environ.get("JAX_PLATFORMS"):
        return
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    # Where something has imported JAX already, it has read its variables.
    jax.config.update("jax_platforms", "cpu")


def _plan(args: argparse.Namespace, composition: Any, prices: Any) -> Any:
    from kanawa.status import stage

    from kanawa_parallel.plan.analyse import analyse
    from kanawa_parallel.plan.compilation import compile_program
    from kanawa_parallel.plan.quick.estimate import with_values
    from kanawa_parallel.plan.serving import DECODE
    from kanawa_parallel.plan.show.suggest import suggestions

    dump = None if args.dump is None else args.dump / composition.target.selector
    compilation = compile_program(composition, DECODE if args.serve else "train_step", dump)
    with stage("counting what it does"):
        report = analyse(composition, compilation, _measured(composition.target) if args.probe else None)
        report = with_values(report, composition, compilation)
    if not report.fits and not args.no_suggestions:
        offered = suggestions(composition, report, args.modify, args.set, None)
        report = dataclasses.replace(report, suggestions=offered)
    report = priced(report, composition.target.device.name, prices)
    if args.picture:
        from kanawa_parallel.plan.show.picture import picture

        args.picture.write_text(picture(composition, compilation), encoding="utf-8")
    if args.save:
        from kanawa_parallel.plan.saved import save

        save(compilation, args.save)
    return report


def _quick(args: argparse.Namespace, composition: Any, prices: Any, alone: bool) -> dict[str, Any]:
    """Returns the quick plan for one target; where that fails beside others the record has "error"."""
    from kanawa_parallel.plan.quick.estimate import quick_report
    from kanawa_parallel.plan.serving import DECODE

    target = composition.target
    try:
        measured = _measured(target) if args.probe else None
        report = quick_report(composition, DECODE if args.serve else "train_step", measured)
    except KanawaError as error:
        if alone:
            raise
        return {"experiment": composition.name, "target": target.selector, "error": str(error)}
    return priced(report, composition.target.device.name, prices).as_json()


def _refuse_early(args: argparse.Namespace) -> None:
    """Raises UsageError for what can't be done as asked, before minutes go into a plan that nothing would keep."""
    if args.quick and not args.search:
        asked = [f"--{name}" for name in ("picture", "save", "dump") if getattr(args, name) is not None]
        if asked:
            message = (
                f"{' and '.join(asked)}: a quick plan compiles nothing, so there is nothing to keep; leave --quick out"
            )
            raise UsageError(message)
    if not args.search:
        asked = [f"--{name}" for name in ("fix", "verify", "budget", "write") if getattr(args, name) not in (None, [])]
        if asked:
            message = f"{' and '.join(asked)}: only a search takes this; add --search, or leave it out"
            raise UsageError(message)
    for flag, path, example in (("--write", args.write, "best.json"), ("--picture", args.picture, "mesh.svg")):
        if path is not None and path.is_dir():
            message = f"{flag} {path} is a folder, expected a file such as {path / example}"
            raise UsageError(message)
        if path is not None and not path.parent.is_dir():
            message = f"{flag} {path}: there is no folder {path.parent}; make it first"
            raise UsageError(message)


def priced(report: Any, device: str, prices: Any) -> Any:
    """Returns the report with its cost, where there are prices and a step that runs."""
    from kanawa_parallel.plan.cost.prices import cost_per_million_tokens

    if not prices or not report.step_seconds:
        return report
    price, currency = prices[0][device], prices[1]
    cost = cost_per_million_tokens(price, report.chips, report.step_seconds, report.tokens_per_step)
    return dataclasses.replace(report, cost_per_million_tokens=cost, currency=currency)


def _measured(target: Any) -> Any:
    """Returns this processor's measured figures; raises UsageError for a target that isn't here."""
    if target.device.platform != "cpu":
        message = f"--probe measures this processor, and {target.selector} isn't it; leave --probe out"
        raise UsageError(message)
    from kanawa_parallel.plan.cost.probe import measured

    return measured(target.device, target.jax_devices)


def prices_for(args: argparse.Namespace, planned: list[Any]) -> tuple[dict[str, float], str] | None:
    """Returns (price by device, currency) of `--prices`, which has all devices; None without one."""
    if args.prices is None:
        return None
    from kanawa_parallel.plan.cost.prices import price_of, read_prices

    prices, currency = read_prices(args.prices)
    for composition in planned:
        price_of(prices, composition.target.device.name, args.prices)
    return prices, currency


def in_own_process(args: argparse.Namespace, target: str) -> dict[str, Any]:
    """Returns one target's plan, made in a process of its own: compilers hold on to memory, and to device counts.

    Where that fails the record has "error": the other targets' plans are worth having.
    """
    from kanawa.status import stage

    command = [sys.executable, "-m", "kanawa.cli", "plan", args.experiment, "--on", target, "--json"]
    for flag, values in (("--modify", args.modify), ("--set", args.set)):
        command += [part for value in values for part in (flag, value)]
    for flag in ("data", "prices", "dump", "save"):
        if getattr(args, flag) is not None:
            command += [f"--{flag}", str(getattr(args, flag))]
    if args.picture is not None:
        command += ["--picture", str(args.picture.with_name(f"{args.picture.stem}-{target}{args.picture.suffix}"))]
    command += [f"--{name.replace('_', '-')}" for name in ("serve", "probe", "no_suggestions") if getattr(args, name)]
    # Only the end is told, and only of a failure: compilers warn by the megabyte.
    with tempfile.TemporaryFile("w+") as errors:
        with stage(f"planning {args.experiment} for {target}"):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
        errors.seek(0)
        if done.returncode:
            said = errors.read()[-4000:].strip()
            message = f"planning {args.experiment} failed (exit code {done.returncode}): {said}"
            return {"experiment": args.experiment, "target": target, "error": message}
    return json.loads(done.stdout)
