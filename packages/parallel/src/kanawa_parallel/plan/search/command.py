"""`kanawa plan EXPERIMENT --on T[,T2…] --search`: asks, searches, verifies, prints, writes."""

import argparse
import copy
import json
from typing import Any

from kanawa.composition.target import parse_target
from kanawa.errors import UsageError

from kanawa_parallel.plan.command import in_own_process, priced, prices_for
from kanawa_parallel.plan.problems import compositions
from kanawa_parallel.plan.search.evaluate import Outcome, Question
from kanawa_parallel.plan.search.search import search
from kanawa_parallel.plan.search.show import as_json, command_line, render, row
from kanawa_parallel.plan.search.space import fixed_choices
from kanawa_parallel.plan.search.verify import verify
from kanawa_parallel.plan.show.report import Report

_NOT_HERE = ("serve", "picture", "save", "dump", "probe", "quick")
#: What `--verify` and `--budget` are where they aren't given.
_VERIFIED, _BUDGET_SECONDS = 2, 600.0


def run_search(args: argparse.Namespace, targets: list[str]) -> int:
    """Searches and prints; returns 0, or 1 where no candidate fits."""
    from kanawa.cli.output import write, write_json

    count, budget = _checked(args)
    fixed = fixed_choices(args.fix)
    question = Question(args.experiment, tuple(args.modify), tuple(args.set), args.data)
    prices = prices_for(args, compositions(args.experiment, targets, args.modify, args.set, args.data))

    def with_cost(report: Report) -> Report:
        priced_report: Report = priced(report, parse_target(report.target).device.name, prices)
        return priced_report

    result = search(question, targets, fixed, budget, with_cost)
    verify(result, count, lambda outcome: _compiled(args, outcome))
    ranked = result.ranked()
    if args.write is not None and ranked:
        winner = row(ranked[0]) | {"experiment": args.experiment, "overrides": list(args.set)}
        winner["modifiers"] = [*args.modify, *winner["modifiers"]]
        winner["command"] = command_line(question, ranked[0])
        args.write.write_text(json.dumps(winner, indent=2) + "\n", encoding="utf-8")
    if args.json:
        write_json(as_json(question, result))
    else:
        write(render(question, result, "" if prices is None else f"{prices[1]} / M tokens"))
    return 0 if ranked else 1


def _checked(args: argparse.Namespace) -> tuple[int, float]:
    """Returns (candidates to verify, seconds of the budget); raises UsageError for what a search can't do."""
    given = [f"--{name}" for name in _NOT_HERE if getattr(args, name)]
    if given:
        message = f"{', '.join(given)}: a search plans training steps and keeps nothing; plan its winner with that"
        raise UsageError(message)
    count = _VERIFIED if args.verify is None else args.verify
    budget = _BUDGET_SECONDS if args.budget is None else args.budget
    # Asked this way round because a NaN is neither more nor less.
    if count < 0 or not budget > 0:
        message = f"--verify {count} --budget {budget:g}: expected 0 or more to verify, and a positive budget"
        raise UsageError(message)
    return count, budget


def _compiled(args: argparse.Namespace, outcome: Outcome) -> dict[str, Any]:
    asked = copy.copy(args)
    asked.modify = [*args.modify, *outcome.candidate.modifiers]
    asked.no_suggestions = True
    return in_own_process(asked, outcome.candidate.target)
