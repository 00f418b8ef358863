"""`kn.plan`: plans as records, for callers whose JAX must stay as it is."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kanawa.api.experiment import Experiment
from kanawa.config import to_json
from kanawa.errors import KanawaError
from kanawa.status import stage, stages_shown

from kanawa_parallel.plan.programs.decode import DECODE
from kanawa_parallel.plan.programs.request import PlanRequest
from kanawa_parallel.plan.report.prices import prices_for
from kanawa_parallel.plan.report.report import Report
from kanawa_parallel.plan.rollout_step import render_rollouts
from kanawa_parallel.plan.serving_room import render_room
from kanawa_parallel.plan.show.render import render
from kanawa_parallel.plan.targets.plan import finished_report, plan_target


class Plan(Report):
    """A plan for one target; `str()` is what `kanawa plan` prints."""

    def __repr__(self) -> str:
        seconds, mfu = self.step_seconds, self.mfu
        figures = "" if seconds is None or mfu is None else f", step_seconds={seconds:.3g}, mfu={mfu:.3f}"
        return f"Plan({self.experiment!r}, on={self.target!r}, fits={self.fits}{figures})"

    def __str__(self) -> str:
        text = render(self) + ("" if self.serving is None else render_room(self.serving))
        return text + ("" if self.rollouts is None else render_rollouts(self.rollouts))


def plan(
    asked: Experiment,
    targets: Sequence[str],
    *,
    quick: bool = False,
    serve: bool = False,
    suggestions: bool = True,
    prices: Path | None = None,
) -> list[Plan]:
    """Returns one plan a target: see `kanawa.plan`.

    Compiled plans are made by the verb, in a process for each: compilers hold on to memory, and a CPU's devices to
    their number. A quick plan is traced here.
    """
    program = DECODE if serve else "train_step"
    with stages_shown(), stage(f"planning {asked.name}"), _request(asked, program) as request:
        compositions = request.composed(targets)
        known = prices_for(prices, compositions)
        if quick:
            reports = [finished_report(plan_target(each, request.program, quick), each, known) for each in compositions]
        else:
            flags = [] if suggestions else ["--no-suggestions"]
            flags += [] if prices is None else ["--prices", str(prices)]
            reports = [_compiled(request, each.required_target().selector, flags) for each in compositions]
    return [Plan(**vars(report) | {"experiment": asked.name}) for report in reports]


def _compiled(request: PlanRequest, target: str, flags: Sequence[str]) -> Report:
    record = request.planned_apart(target, flags=flags)
    if "error" in record:
        raise KanawaError(record["error"])
    return Report.from_json(record)


@contextmanager
def _request(asked: Experiment, program: str) -> Iterator[PlanRequest]:
    """Yields the request in words: what words can't say is written to a file, which is an experiment too."""
    texts = tuple(one for one in asked.set if isinstance(one, str))
    if isinstance(asked.what, str) and len(texts) == len(asked.set):
        yield PlanRequest(asked.what, asked.modify, texts, asked.data, program)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.json")
        file.write_text(json.dumps(to_json(asked.for_target(None).config)), encoding="utf-8")
        yield PlanRequest(str(file), program=program)
