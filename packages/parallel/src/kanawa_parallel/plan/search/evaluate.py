"""The outcome of a candidate by its quick plan and by its compiler: time, memory, or why it is dropped."""

import dataclasses
from typing import Any

from kanawa.errors import CompositionError, KanawaError
from kanawa.plugins import MeshRule

from kanawa_parallel.plan.programs.request import PlanRequest
from kanawa_parallel.plan.quick.estimate import quick_report
from kanawa_parallel.plan.report.report import Report
from kanawa_parallel.plan.report.units import format_bytes
from kanawa_parallel.plan.search.space import Candidate

#: A compiled plan may need this much more memory than a quick one: one that isn't verified must have that room.
ROOM = 1.1


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A candidate with its quick plan, or the reason why there is none; `compiled` once it was compiled."""

    candidate: Candidate
    report: Report | None = None
    reason: str = ""
    compiled: dict[str, Any] | None = None
    unverified: str = ""

    @property
    def seconds(self) -> float:
        """A step's time: the compiled plan's where there is one; at the roofline for what doesn't fit."""
        if self.compiled is not None and self.compiled["step_seconds"]:
            return float(self.compiled["step_seconds"])
        if self.report is None:
            return float("inf")
        return self.report.step_seconds or self.report.estimated_seconds

    @property
    def memory_bytes(self) -> int:
        """A device's memory: the compiled plan's where there is one."""
        if self.compiled is not None:
            return int(self.compiled["memory_per_device_bytes"])
        return 0 if self.report is None else self.report.memory_per_device_bytes

    @property
    def fits(self) -> bool:
        """Whether it fits, by the compiler or by a quick plan with room to spare."""
        if self.report is None:
            return False
        if self.compiled is not None:
            return bool(self.compiled["fits"])
        return self.memory_bytes * ROOM <= self.report.memory_limit_bytes

    @property
    def why_not(self) -> str:
        """Why it is dropped; empty if it isn't."""
        if self.report is None:
            return self.reason
        if self.fits:
            return ""
        limit = self.report.memory_limit_bytes
        if self.memory_bytes > limit:
            return f"does not fit: {format_bytes(self.memory_bytes - limit)} too much of {format_bytes(limit)} a device"
        needed = f"{format_bytes(self.memory_bytes)} of {format_bytes(limit)} a device"
        return f"may not fit: {needed}, less than {ROOM - 1:.0%} to spare"

    def cost(self) -> float:
        """Returns money for a million tokens, else chip-seconds, by which candidates of one search compare."""
        if self.report is None:
            return float("inf")
        price = self.report.cost_per_million_tokens
        if price is not None and self.report.step_seconds:
            return price * self.seconds / self.report.step_seconds
        return self.report.chips * self.seconds / (self.report.tokens_per_step / 1e6)


def evaluate(request: PlanRequest, candidate: Candidate, rule: MeshRule | None = None) -> Outcome:
    """Returns a candidate with its quick plan, over this rule or that of the target."""
    try:
        (composition,) = request.composed([candidate.target], candidate.modifiers, rule)
        return Outcome(candidate, quick_report(composition, request.program))
    except CompositionError as error:
        first = error.problems[0].removeprefix(f"--on {candidate.target}: ").removeprefix(f"{request.experiment}: ")
        return Outcome(candidate, reason=f"refused: {first}")
    except KanawaError as error:
        return Outcome(candidate, reason=f"refused: {str(error).splitlines()[0]}")
