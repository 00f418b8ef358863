"""`kanawa plan EXPERIMENT --on T --goodput`: gathers the inputs of a month, simulates it, and suggests improvements."""

import argparse
import contextlib

from kanawa.composition.experiment import Composition
from kanawa.errors import KanawaError, UsageError
from kanawa.module import Module, count_parameters
from kanawa.status import stage

from kanawa_parallel.plan.goodput.assume import Planned, assume_scenario, read_measured
from kanawa_parallel.plan.goodput.show import Month
from kanawa_parallel.plan.goodput.simulate import average
from kanawa_parallel.plan.goodput.suggest import suggestions

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


def simulated(args: argparse.Namespace, composition: Composition, step_seconds: float | None) -> Month:
    """Returns the simulated month of a composition whose steps take so long, with suggestions."""
    target = composition.required_target()
    parameters = count_parameters(composition.model)[0] if isinstance(composition.model, Module) else 0
    planned = Planned(target.hosts, target.chips, step_seconds, parameters, _interval(composition))
    measured = None if args.measured is None else read_measured(args.measured)
    assumed = assume_scenario(planned, args.assume, measured)
    with stage("simulating months"):
        outcome, advice = average(assumed.scenario, _MONTHS), suggestions(assumed.scenario)
    return Month(composition.name, target.selector, assumed, outcome, advice)


def _interval(composition: Composition) -> int | None:
    """Returns the steps between checkpoints that the experiment is configured with."""
    with contextlib.suppress(KanawaError):
        every = composition.config.get("checkpoints.every_steps")
        return every if isinstance(every, int) and every > 0 else None
    return None
