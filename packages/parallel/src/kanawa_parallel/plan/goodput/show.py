"""A simulated month for people and for machines."""

import dataclasses
from typing import Any

from kanawa_parallel.plan.goodput.assume import Assumed
from kanawa_parallel.plan.goodput.scenario import Scenario
from kanawa_parallel.plan.goodput.simulate import Outcome
from kanawa_parallel.plan.goodput.suggest import Suggestions
from kanawa_parallel.plan.report.units import format_seconds

#: What each category is, for a reader who meets it first.
_MEANING = {
    "productive": "steps that count",
    "wasted": "steps taken again, and those cut short",
    "checkpoint_save": "training stopped by saves",
    "checkpoint_restore": "reading checkpoints",
    "compile": "compiling",
    "startup": "processes starting",
    "detection": "until a failure is noticed",
    "down": "waiting for hosts and for the launcher",
}


@dataclasses.dataclass(frozen=True)
class Month:
    """A simulated month: what was assumed, what became of the time, and what would lose less."""

    experiment: str
    target: str
    assumed: Assumed
    outcome: Outcome
    advice: Suggestions


def as_json(month: Month) -> dict[str, Any]:
    """Returns the object of `plan --goodput --json`."""
    assumed, outcome, advice = month.assumed, month.outcome, month.advice
    total = sum(outcome.seconds.values())
    return {
        "experiment": month.experiment,
        "target": month.target,
        "goodput": outcome.goodput,
        "seconds": outcome.seconds,
        "shares": {category: seconds / total for category, seconds in outcome.seconds.items()},
        "failures": outcome.failures,
        "steps": outcome.steps,
        "system_mtbf_hours": assumed.scenario.system_mtbf_seconds / 3600.0,
        "assumptions": dataclasses.asdict(assumed.scenario),
        "origins": dict(assumed.origins),
        "suggestions": {
            "goodput": advice.outcome.goodput,
            "intervals": [dataclasses.asdict(row) for row in advice.intervals],
            "spares": advice.best_spares,
            "spares_tried": [
                {"spares": spares, "goodput": goodput, "goodput_per_host": paid}
                for spares, goodput, paid in advice.spares
            ],
            "tiers": [{"tiers": list(names), "goodput": goodput} for names, goodput in advice.tiers],
        },
    }


def render(month: Month) -> str:
    """Returns the text."""
    assumed, outcome, s = month.assumed, month.outcome, month.assumed.scenario
    total = sum(outcome.seconds.values())
    lines = [
        f"{month.experiment} on {month.target}: {s.days:g} days on {s.hosts:,} host{'s' * (s.hosts != 1)}, simulated",
        f"goodput {outcome.goodput:.1%}: {outcome.steps:,} steps, {outcome.failures} failures, one every "
        f"{duration_of(s.system_mtbf_seconds)}",
        "",
    ]
    width = max(map(len, _MEANING))
    for category, seconds in outcome.seconds.items():
        lines.append(f"  {category:{width}}  {seconds / total:7.2%}  {seconds / 3600:9.1f} h  {_MEANING[category]}")
    lines += [
        "",
        "by",
        *(f"  {line}" for line in _assumptions(assumed)),
        "",
        "suggestions",
        *_suggested(s, month.advice),
    ]
    return "\n".join(lines)


def duration_of(seconds: float) -> str:
    """Returns hours and minutes for what takes longer than a minute."""
    if seconds < 120:
        return format_seconds(seconds)
    return f"{seconds / 3600:.1f} h" if seconds >= 7200 else f"{seconds / 60:.0f} min"


def _assumptions(assumed: Assumed) -> list[str]:
    s = assumed.scenario
    rows = []
    for name in (field.name for field in dataclasses.fields(Scenario) if field.name not in ("tiers", "days")):
        rows.append(f"{name:21}  {getattr(s, name):>12,.6g}  {assumed.origins[name]}")
    for tier in s.tiers:
        rows.append(
            f"tier {tier.name}: every {tier.every_steps} steps, stops training for "
            f"{format_seconds(tier.blocking_seconds)}, counts {format_seconds(tier.write_seconds)} later, read in "
            f"{format_seconds(tier.restore_seconds)}, survives {tier.survives}  {assumed.origins['tiers']}"
        )
    return rows


def _suggested(s: Scenario, advice: Suggestions) -> list[str]:
    lines = []
    for row in advice.intervals:
        every = duration_of(row.best * s.step_seconds)
        lines.append(
            f"  save to {row.tier} every {row.best} steps ({every}), now {row.asked}; Young says {row.young}, "
            f"Daly {row.daly}"
        )
    at = {spares: goodput for spares, goodput, _ in advice.spares}
    lines.append(
        f"  keep {advice.best_spares} hosts standing by, now {s.spares}: goodput {at[advice.best_spares]:.1%}, "
        f"{at[0]:.1%} with none"
    )
    if len(advice.tiers) > 1:
        ranked = ", ".join(f"{' + '.join(names)} {goodput:.2%}" for names, goodput in advice.tiers[:4])
        lines.append(f"  tiers, each set at its own best: {ranked}")
    lines.append(f"  with all of it: goodput {advice.outcome.goodput:.1%}")
    return lines
