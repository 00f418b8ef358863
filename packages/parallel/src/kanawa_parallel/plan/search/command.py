"""`kanawa plan EXPERIMENT --on T[,T2…] --search`: searches, verifies, writes the result as text or as JSON."""

import argparse
import json
import shlex
from collections import Counter
from typing import Any

from kanawa.composition.target import parse_target
from kanawa.errors import UsageError

from kanawa_parallel.plan.programs.request import PlanRequest
from kanawa_parallel.plan.report.prices import Prices
from kanawa_parallel.plan.report.report import Report
from kanawa_parallel.plan.report.units import format_bytes, format_seconds
from kanawa_parallel.plan.search.evaluate import Outcome
from kanawa_parallel.plan.search.search import Search, search
from kanawa_parallel.plan.search.space import fixed_choices
from kanawa_parallel.plan.show.render import format_table

#: How many kinds of reasons are listed; and the gain below which none is reported: it rounds to 0.0 %.
_REASONS, _LEAST_GAIN = 8, 0.0005
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


def command_line(request: PlanRequest, outcome: Outcome) -> str:
    """Returns the command that trains as an outcome's candidate says."""
    return shlex.join(["kanawa", "train", *request.words(outcome.candidate.target, outcome.candidate.modifiers)])


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Returns a candidate's record."""
    report = outcome.report
    return {
        "target": outcome.candidate.target,
        "modifiers": list(outcome.candidate.modifiers),
        "mesh": None if report is None else report.mesh,
        "fits": outcome.fits,
        "step_seconds": outcome.seconds if report is not None else None,
        "quick_seconds": None if report is None else report.step_seconds,
        "memory_per_device_bytes": outcome.memory_bytes,
        "cost": outcome.cost() if report is not None else None,
        "verified": outcome.compiled is not None,
        "reason": outcome.why_not or outcome.unverified,
    }


def search_json(request: PlanRequest, result: Search) -> dict[str, Any]:
    """Returns the object of `plan --search --json`."""
    ranked = result.ranked()
    winner = ranked[0] if ranked else None
    return {
        "experiment": request.experiment,
        "winner": None if winner is None else {**outcome_json(winner), "command": command_line(request, winner)},
        "by_rule": {target: outcome_json(outcome) for target, outcome in result.by_rule.items()},
        "gain_over_rule": None if winner is None else gain(result, winner),
        "frontier": [outcome_json(each) for each in result.frontier()],
        "candidates": [outcome_json(each) for each in result.outcomes],
        "out_of_time": result.out_of_time,
    }


def gain(result: Search, winner: Outcome) -> float | None:
    """Returns how much quicker a step is than the mesh rule's on the same target; None where the rule's doesn't fit."""
    rule = result.by_rule.get(winner.candidate.target)
    if rule is None or rule.report is None or rule.report.step_seconds is None:
        return None
    # Estimates are compared with estimates, and compiled plans with compiled plans.
    both = winner.compiled is not None and rule.compiled is not None and rule.compiled["step_seconds"]
    quick = winner.report.step_seconds if winner.report is not None else None
    if not both:
        return None if not quick else 1 - quick / rule.report.step_seconds
    return 1 - winner.seconds / rule.seconds


def render_search(request: PlanRequest, result: Search, currency: str) -> str:
    """Returns the text: the frontier, the rules' choice, the dropped candidates with reasons, and the command."""
    head = ("candidate", "target", "step", "a device", currency or "chip-s / M tokens", "by")
    lines = [
        format_table("the frontier of step time, memory and cost", head, [_cells(each) for each in result.frontier()])
    ]
    rules = [
        _cells(each) if each.report else (each.reason, each.candidate.target) + ("-",) * 4
        for each in result.by_rule.values()
    ]
    lines.append(format_table("by the mesh rules and recipes", head, rules))
    lines.append(_dropped(result))
    ranked = result.ranked()
    if not ranked:
        nearest = result.nearest()
        lines.append(
            "\nnone of the candidates fits" + (f"; nearest: {_name(nearest)}, {nearest.why_not}" if nearest else "")
        )
        return "\n".join(lines)
    winner, won = ranked[0], gain(result, ranked[0])
    comparison = (
        "the rule's own plan does not fit"
        if won is None
        else f"{won:.1%} quicker than the rule"
        if won > _LEAST_GAIN
        else "no quicker than the rule"
    )
    lines.append(
        f"\nbest: {_name(winner)} on {winner.candidate.target}: {format_seconds(winner.seconds)} a step, {comparison}"
    )
    lines.append(f"  {command_line(request, winner)}")
    if result.out_of_time:
        lines.append("  the budget ended before the search did; a longer one may find more")
    return "\n".join(lines)


def _cells(outcome: Outcome) -> tuple[str, ...]:
    by = "compiler" if outcome.compiled is not None else outcome.unverified or "estimate"
    return (
        _name(outcome), outcome.candidate.target, format_seconds(outcome.seconds), format_bytes(outcome.memory_bytes),
        f"{outcome.cost():.3g}", by,
    )  # fmt: skip


def _name(outcome: Outcome) -> str:
    chosen = outcome.candidate
    mesh = "the rule's mesh" if chosen.mesh is None else " x ".join(f"{name} {n}" for name, n in chosen.mesh)
    parts = [mesh, chosen.policy or "", f"{chosen.microbatches} microbatches" if chosen.microbatches else ""]
    return ", ".join(part for part in parts if part)


def _dropped(result: Search) -> str:
    """Returns the number of dropped candidates by kind of reason, with an example of each."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for each in result.outcomes:
        if each.why_not:
            kind = each.why_not.partition(":")[0]
            counts[kind] += 1
            examples.setdefault(kind, f"{_name(each)} on {each.candidate.target}: {each.why_not}")
    lines = [f"  {count} {kind}, such as {examples[kind]}" for kind, count in counts.most_common(_REASONS)]
    return "\n".join([f"\n{len(result.outcomes)} candidates, {sum(counts.values())} dropped:", *lines])
