"""The search: every mesh first, then policies for the best of them, then microbatches; each judged by a quick plan.

The best are verified under the compiler.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
from kanawa.composition.environment import environment
from kanawa.composition.experiment import Composition
from kanawa.composition.prepare import prepare
from kanawa.composition.target import parse_target
from kanawa.status import stage

from kanawa_parallel.passes import batch_cuts
from kanawa_parallel.plan.programs.request import PlanRequest
from kanawa_parallel.plan.report.report import Report
from kanawa_parallel.plan.report.units import format_bytes
from kanawa_parallel.plan.search.evaluate import Outcome, evaluate
from kanawa_parallel.plan.search.space import Candidate, meshes, policies, splits

#: How many of a round's best are varied in the next; half of them may not fit yet.
_KEPT = 4
#: Plans an outcome's candidate in a process of its own.
Compile = Callable[[Outcome], dict[str, Any]]


@dataclasses.dataclass
class Search:
    """The outcomes for all targets, in the order in which they were planned; `by_rule` are those of the mesh rules."""

    outcomes: list[Outcome]
    by_rule: dict[str, Outcome]
    out_of_time: bool = False

    def ranked(self) -> list[Outcome]:
        """Returns those that fit, quickest first on one target; cheapest first over several."""
        several = len({outcome.candidate.target for outcome in self.outcomes}) > 1
        fitting = [outcome for outcome in self.outcomes if outcome.fits]
        return sorted(
            fitting, key=lambda each: (each.cost() if several else each.seconds, len(each.candidate.modifiers))
        )

    def frontier(self) -> list[Outcome]:
        """Returns those that fit and that no other beats in time, memory and cost at once."""
        ranked = self.ranked()
        points = [(each.seconds, each.memory_bytes, each.cost()) for each in ranked]
        unbeaten = []
        for at, (each, point) in enumerate(zip(ranked, points, strict=True)):
            beaten = any(other != point and all(a <= b for a, b in zip(other, point, strict=True)) for other in points)
            # Of equals the one that changes least comes first.
            if not beaten and point not in points[:at]:
                unbeaten.append(each)
        return sorted(unbeaten, key=lambda each: each.seconds)

    def nearest(self) -> Outcome | None:
        """Returns the outcome that exceeds its device's memory least, for when none fits."""
        shares = [(each.memory_bytes / each.report.memory_limit_bytes, each) for each in self.outcomes if each.report]
        return min(shares, key=lambda pair: pair[0], default=(0.0, None))[1]

    def verify(self, count: int, compiled: Compile) -> None:
        """Compiles the best candidates until `count` are known to fit, and the rule's own beside them, for comparison.

        If one doesn't fit, the next is tried; at most twice `count` are.
        """
        tried = good = 0
        while good < count and tried < 2 * count:
            following = next((each for each in self.ranked() if each.compiled is None and not each.unverified), None)
            if following is None:
                return
            outcome = self._verified(following, compiled)
            tried += 1
            good += outcome.compiled is not None and outcome.fits
        best = next(iter(self.ranked()), None)
        rule = None if best is None else self.by_rule.get(best.candidate.target)
        if count and rule is not None and rule.report is not None and rule.compiled is None and not rule.unverified:
            self._verified(rule, compiled)

    def _verified(self, old: Outcome, compiled: Compile) -> Outcome:
        """Replaces an estimated outcome by the compiled one."""
        with stage(f"compiling for {old.candidate.target}: {' '.join(old.candidate.modifiers) or 'by its rule'}"):
            plan = compiled(old)
        if "error" in plan:
            changes: dict[str, Any] = {"unverified": f"not compiled: {plan['error'].strip().splitlines()[-1][:120]}"}
        elif not plan["compiled"]:
            changes = {"unverified": "not compiled: no public compiler"}
        else:
            changes = {"compiled": plan}
        new = dataclasses.replace(old, **changes)
        self.outcomes[self.outcomes.index(old)] = new
        for target, outcome in self.by_rule.items():
            if outcome is old:
                self.by_rule[target] = new
        return new


def search(
    request: PlanRequest,
    targets: Iterable[str],
    fixed: Mapping[str, str],
    budget_seconds: float = math.inf,
    priced: Callable[[Report], Report] = lambda report: report,
) -> Search:
    """Returns what was found in the budget; deterministic unless the budget runs out."""
    result = Search([], {})
    names = list(targets)
    begin = time.monotonic()
    for at, target in enumerate(names):
        # Each target has its part of the time that is left.
        share = begin + budget_seconds * (at + 1) / len(names)
        for outcome in _judged(request, target, fixed, result):
            if outcome.report is not None:
                outcome = dataclasses.replace(outcome, report=priced(outcome.report))
            result.outcomes.append(outcome)
            if not outcome.candidate.modifiers:
                result.by_rule[target] = outcome
            if time.monotonic() > share:
                result.out_of_time = True
                break
    return result


def _judged(request: PlanRequest, target: str, fixed: Mapping[str, str], result: Search) -> Iterator[Outcome]:
    """Yields outcomes for one target, round by round."""
    seen: set[Candidate] = set()

    def judged(candidates: Iterable[Candidate]) -> Iterator[Outcome]:
        for candidate in candidates:
            if candidate in seen:
                continue
            seen.add(candidate)
            with stage(f"searching {target}, {len(seen)} tried: {' '.join(candidate.modifiers) or 'by its rule'}"):
                yield evaluate(request, candidate, rule)

    composition = request.composed([target])[0]
    # What the rule, or placement, chose is where the search starts: it isn't chosen anew for each candidate.
    rule = composition.rule
    yield from judged([Candidate(target)])
    shape = composition.config.batch_shape()
    rows = 1 if shape is None else shape.rows
    model = composition.workload().model
    # Without microbatches one of them is no choice.
    cuts = bool(batch_cuts(composition.config, model))
    parts = [number for number in splits(rows, fixed) if number > 1 or cuts or "microbatches" in fixed]
    parsed = parse_target(target)
    policy = fixed.get("policy")
    count = int(fixed["microbatches"]) if "microbatches" in fixed else None
    least = _least_bytes(composition, request, parsed.device.memory_bytes // parsed.device.jax_devices_per_chip)
    first = []
    for mesh in meshes(parsed, model, fixed):
        candidate = Candidate(target, mesh, policy, count, parsed.slices)
        refused = least(dict(mesh))
        if refused:
            yield Outcome(candidate, reason=refused)
        else:
            first.append(candidate)
    yield from judged(first)
    # Policies a second time: with smaller microbatches one may fit that keeps more.
    names = policies(fixed)
    yield from judged(dataclasses.replace(each, policy=name) for each in _best(result, target) for name in names)
    yield from judged(dataclasses.replace(each, microbatches=n) for each in _best(result, target) for n in parts)
    yield from judged(dataclasses.replace(each, policy=name) for each in _best(result, target) for name in names)


def _best(result: Search, target: str) -> list[Candidate]:
    """Returns the target's candidates worth varying: the quickest that fit, and the quickest of all."""
    outcomes = [each for each in result.outcomes if each.candidate.target == target and each.report is not None]
    judged = sorted(outcomes, key=lambda each: each.seconds)
    fitting = [each for each in judged if each.fits]
    chosen = [*fitting[: _KEPT // 2], *(each for each in judged if each not in fitting[: _KEPT // 2])]
    return [each.candidate for each in chosen[:_KEPT]]


def _least_bytes(composition: Composition, request: PlanRequest, limit: int) -> Callable[[dict[str, int]], str]:
    """Returns a function from a mesh to the reason why its devices can't hold even the state; "" if they can."""
    prepared = prepare(composition, where=environment(composition, "abstract"))
    program = prepared.programs.get(request.program)
    leaves = [] if program is None else jax.tree.leaves(program.abstract_args[0])
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves if hasattr(leaf.dtype, "itemsize"))
    elsewhere = composition.config.execution.optimizer_memory is not None

    def least(mesh: dict[str, int]) -> str:
        shards = mesh.get("fsdp", 1) * mesh.get("tensor", 1) * mesh.get("expert", 1)
        if elsewhere or held / shards <= limit:
            return ""
        return f"does not fit: the state alone is {format_bytes(held / shards)} a device, of {format_bytes(limit)}"

    return least
