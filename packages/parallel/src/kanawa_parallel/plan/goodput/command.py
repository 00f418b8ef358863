"""`kanawa plan EXPERIMENT --on T --goodput`: gathers the inputs of a month, simulates it, and suggests improvements."""

import argparse
import contextlib
from typing import Any

from kanawa.composition.experiment import Composition
from kanawa.errors import KanawaError, UsageError
from kanawa.status import stage

from kanawa_parallel.plan.goodput.assume import Assumed, Planned, assume_scenario, read_measured
from kanawa_parallel.plan.goodput.show import as_json, render
from kanawa_parallel.plan.goodput.simulate import Outcome, average
from kanawa_parallel.plan.goodput.suggest import Suggestions, suggestions

#: How many simulated months are averaged.
_MONTHS = 20


def refuse_without_goodput(args: argparse.Namespace) -> None:
    """Raises UsageError for a simulation's options without --goodput, and for verbs' options that it excludes."""
    asked = ["--assume"] * bool(args.assume) + ["--measured"] * (args.measured is not None)
    if asked and not args.goodput:
        message = f"{' and '.join(asked)}: only the simulation of a month takes this; add --goodput, or omit it"
        raise UsageError(message)
    beside = [f"--{name}" for name in ("search", "serve", "compare") if args.goodput and getattr(args, name)]
    if beside:
        message = f"--goodput with {' and '.join(beside)}: it simulates the training of one plan; omit the latter"
        raise UsageError(message)


def needs_plan(args: argparse.Namespace) -> bool:
    """Returns whether a step's time has to be planned: it is neither assumed nor measured."""
    assumed = any(text.startswith("step_seconds=") for text in args.assume)
    return not assumed and (args.measured is None or "step_seconds" not in read_measured(args.measured))


def simulated(
    args: argparse.Namespace, composition: Composition, step_seconds: float | None
) -> tuple[Assumed, Outcome, Suggestions]:
    """Returns the assumptions, the simulated month, and the suggestions."""
    target = composition.target
    if target is None:
        message = "--goodput needs --on TARGET: failures are counted by its hosts"
        raise UsageError(message)
    planned = Planned(target.hosts, target.chips, step_seconds, _parameters(composition), _interval(composition))
    measured = None if args.measured is None else read_measured(args.measured)
    assumed = assume_scenario(planned, args.assume, measured)
    with stage("simulating months"):
        return assumed, average(assumed.scenario, _MONTHS), suggestions(assumed.scenario)


def simulated_json(args: argparse.Namespace, composition: Composition, step_seconds: float | None) -> dict[str, Any]:
    """Returns the object of `--json`."""
    assumed, outcome, advice = simulated(args, composition, step_seconds)
    return as_json(composition.name, _selector(composition), assumed, outcome, advice)


def simulated_text(args: argparse.Namespace, composition: Composition, step_seconds: float | None) -> str:
    """Returns what a person reads."""
    assumed, outcome, advice = simulated(args, composition, step_seconds)
    return render(composition.name, _selector(composition), assumed, outcome, advice)


def _selector(composition: Composition) -> str:
    return composition.target.selector if composition.target is not None else ""


def _parameters(composition: Composition) -> int:
    from kanawa.module import Module, count_parameters

    return count_parameters(composition.model)[0] if isinstance(composition.model, Module) else 0


def _interval(composition: Composition) -> int | None:
    """Returns the steps between checkpoints that the experiment is configured with."""
    with contextlib.suppress(KanawaError):
        every = composition.config.get("checkpoints.every_steps")
        return every if isinstance(every, int) and every > 0 else None
    return None
