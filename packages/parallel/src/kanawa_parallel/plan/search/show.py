"""The result of a search as text and as JSON."""

import shlex
from collections import Counter
from typing import Any

from kanawa_parallel.plan.programs.request import PlanRequest
from kanawa_parallel.plan.report.units import format_bytes, format_seconds
from kanawa_parallel.plan.search.evaluate import Outcome
from kanawa_parallel.plan.search.search import Search
from kanawa_parallel.plan.show.render import format_table

#: How many kinds of reasons are listed; and the gain below which none is reported: it rounds to 0.0 %.
_REASONS, _LEAST_GAIN = 8, 0.0005


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
