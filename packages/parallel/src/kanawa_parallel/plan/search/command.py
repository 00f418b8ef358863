"""`kanawa plan EXPERIMENT --on T[,T2…] --search`: searches, verifies, prints and writes."""

import argparse
import json
from typing import Any

from kanawa.composition.target import parse_target
from kanawa.errors import UsageError

from kanawa_parallel.plan.programs.request import PlanRequest
from kanawa_parallel.plan.report.prices import Prices
from kanawa_parallel.plan.report.report import Report
from kanawa_parallel.plan.search.evaluate import Outcome
from kanawa_parallel.plan.search.search import search
from kanawa_parallel.plan.search.show import command_line, outcome_json, render_search, search_json
from kanawa_parallel.plan.search.space import fixed_choices

_NOT_HERE = ("serve", "picture", "save", "dump", "quick")
#: The defaults of `--verify` and `--budget`.
_VERIFIED, _BUDGET_SECONDS = 2, 600.0


def run_search(args: argparse.Namespace, request: PlanRequest, targets: list[str], prices: Prices | None) -> int:
    """Searches and prints; returns 0, or 1 where no candidate fits."""
    from kanawa.cli.output import write, write_json

    count, budget = _limits(args)
    fixed = fixed_choices(args.fix)

    def with_cost(report: Report) -> Report:
        return report if prices is None else prices.priced(report, parse_target(report.target).device.name)

    result = search(request, targets, fixed, budget, with_cost)
    result.verify(count, lambda outcome: _compiled(request, outcome))
    ranked = result.ranked()
    if args.write is not None and ranked:
        winner = outcome_json(ranked[0]) | {"experiment": args.experiment, "overrides": list(args.set)}
        winner["modifiers"] = [*args.modify, *winner["modifiers"]]
        winner["command"] = command_line(request, ranked[0])
        args.write.write_text(json.dumps(winner, indent=2) + "\n", encoding="utf-8")
    if args.json:
        write_json(search_json(request, result))
    else:
        write(render_search(request, result, "" if prices is None else f"{prices.currency} / M tokens"))
    return 0 if ranked else 1


def _limits(args: argparse.Namespace) -> tuple[int, float]:
    """Returns (candidates to verify, seconds of the budget); raises UsageError for what a search can't do."""
    flags = [f"--{name}" for name in _NOT_HERE if getattr(args, name)]
    if flags:
        message = f"{', '.join(flags)}: a search plans training steps and saves nothing; plan its winner with that"
        raise UsageError(message)
    count = _VERIFIED if args.verify is None else args.verify
    budget = _BUDGET_SECONDS if args.budget is None else args.budget
    # Asked this way round because a NaN is neither more nor less.
    if count < 0 or not budget > 0:
        message = f"--verify {count} --budget {budget:g}: expected 0 or more to verify, and a positive budget"
        raise UsageError(message)
    return count, budget


def _compiled(request: PlanRequest, outcome: Outcome) -> dict[str, Any]:
    candidate = outcome.candidate
    return request.planned_apart(candidate.target, candidate.modifiers, ["--no-suggestions"])
