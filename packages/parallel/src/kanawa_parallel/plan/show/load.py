"""A plan's JSON back into a report, so that plans made elsewhere can be compared."""

import dataclasses
from typing import Any

from kanawa_parallel.plan.show.report import HeldRow, ModuleRow, Report, Suggestion, Traffic


def from_json(plan: dict[str, Any]) -> Report:
    """Returns the report that `Report.as_json` wrote; derived figures are derived anew."""
    fields = {f.name for f in dataclasses.fields(Report)}
    values = {name: value for name, value in plan.items() if name in fields}
    values["traffic"] = [Traffic(**row) for row in plan["communication"]]
    values["modules"] = [ModuleRow(**row) for row in plan["modules"]]
    values["held"] = tuple(HeldRow(**row) for row in plan.get("held", ()))
    values["suggestions"] = tuple(
        Suggestion(**{k: v for k, v in s.items() if k != "verified"}) for s in plan["suggestions"]
    )
    return Report(**values)
