"""The best candidates under the compiler, each in a process of its own."""

import dataclasses
from collections.abc import Callable
from typing import Any

from kanawa.status import stage

from kanawa_parallel.plan.search.evaluate import Outcome
from kanawa_parallel.plan.search.search import Search

Compile = Callable[[Outcome], dict[str, Any]]


def verify(result: Search, count: int, compiled: Compile) -> None:
    """Compiles the best candidates until `count` are known to fit, and the rule's own beside them, for comparison.

    If one doesn't fit, the next is tried; at most twice `count` are.
    """
    tried = good = 0
    while good < count and tried < 2 * count:
        following = next((each for each in result.ranked() if each.compiled is None and not each.unverified), None)
        if following is None:
            return
        outcome = _verified(following, compiled)
        result.replace(following, outcome)
        tried += 1
        good += outcome.compiled is not None and outcome.fits
    best = next(iter(result.ranked()), None)
    rule = None if best is None else result.by_rule.get(best.candidate.target)
    if count and rule is not None and rule.report is not None and rule.compiled is None and not rule.unverified:
        result.replace(rule, _verified(rule, compiled))


def _verified(outcome: Outcome, compiled: Compile) -> Outcome:
    with stage(f"compiling for {outcome.candidate.target}: {' '.join(outcome.candidate.modifiers) or 'by its rule'}"):
        plan = compiled(outcome)
    if "error" in plan:
        return dataclasses.replace(outcome, unverified=f"not compiled: {plan['error'].strip().splitlines()[-1][:120]}")
    if not plan["compiled"]:
        return dataclasses.replace(outcome, unverified="not compiled: no public compiler")
    return dataclasses.replace(outcome, compiled=plan)
