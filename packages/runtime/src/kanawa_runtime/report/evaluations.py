"""The last word on held-out data: over all of it where that was measured, beside the baseline."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kanawa_runtime.report.curves import BASELINE
from kanawa_runtime.report.parts import card, section, table
from kanawa_runtime.report.run_data import RunData, field_value, unit_of
from kanawa_runtime.train.screen import human_count


def evaluations(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Each run's first and last evaluation of either kind, and what a table of trigrams scores on the same text."""
    rows = []
    unit = unit_of(runs)
    own = tuple(dict.fromkeys(name for run in runs for name in run.last("eval").get("metrics", ())))
    for run, name in zip(runs, names, strict=True):
        partial, whole = run.evaluations()
        # Of two at one step, after a restart, the later counts, as in the curves.
        records = {field_value(record, "step"): record for record in run.of("eval")}
        kinds = [("a part" if whole else "as configured", partial), ("all", whole)]
        for kind, points in kinds:
            for step in dict.fromkeys(step for step, _ in (points[:1] + points[-1:])):
                rows.append([name, kind, *_row(records[step], unit, own)])
        baseline = run.curve(BASELINE, "eval")
        if baseline:
            value = baseline[-1][1]
            rows.append(
                [
                    name,
                    "all, trigram table",
                    "",
                    "",
                    f"{value:.4f}",
                    f"{value / math.log(2):.4f}",
                    *("" for _ in (*own, unit)),
                ]
            )
    if not rows:
        return ""
    words = ["nats a token", "nats a byte", "bits a byte"] if unit == "tokens" else ["nats"]
    head = ["", "held-out data", "updates", *words, *own, unit]
    if len(runs) == 1:
        head, rows = head[1:], [row[1:] for row in rows]
    numbers = range(head.index("updates"), len(head))
    note = (
        '<p class="note">Evaluations while training may be over a part of the held-out data, the last one over all of '
        "it: compare like with like. The trigram table was counted on the same training text.</p>"
    )
    return section("Evaluation", card(note + table(head, rows, numbers=numbers)))


def _row(record: Mapping[str, Any], unit: str, own: Sequence[str]) -> list[str]:
    step, count = field_value(record, "step"), field_value(record, "tokens")
    loss, per_byte = field_value(record, "loss"), field_value(record, "nats_per_byte")
    metrics = [field_value(record, f"metrics.{name}") for name in own]
    of_text = [per_byte, None if per_byte is None else per_byte / math.log(2)] if unit == "tokens" else []
    return [
        "" if step is None else f"{step:,.0f}",
        *("" if number is None else f"{number:.4f}" for number in (loss, *of_text, *metrics)),
        "" if count is None else human_count(count),
    ]
