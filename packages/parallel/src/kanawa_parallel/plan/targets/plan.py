"""Plans one target in this process: by its compiler, or estimated from the traced program where there is none."""

import dataclasses
from pathlib import Path

from kanawa.composition.experiment import Composition
from kanawa.errors import UsageError

from kanawa_parallel.plan.compiled.compilation import Compilation, compile_program, compiler_devices
from kanawa_parallel.plan.compiled.count import compiled_report
from kanawa_parallel.plan.programs.decode import DECODE
from kanawa_parallel.plan.quick.estimate import quick_report
from kanawa_parallel.plan.report.prices import Prices
from kanawa_parallel.plan.report.report import Report
from kanawa_parallel.plan.rollout_step import rollout_step
from kanawa_parallel.plan.serving_room import serving_room


@dataclasses.dataclass(frozen=True)
class PlannedTarget:
    """One target's report, and what was compiled for it; None if nothing was."""

    report: Report
    compilation: Compilation | None = None


def plan_target(
    composition: Composition,
    program: str = "train_step",
    quick: bool = False,
    dump: Path | None = None,
) -> PlannedTarget:
    """Returns the plan of a composition's program for its target; the compiler's texts stay in `dump`.

    Raises TargetError where the target's compiler isn't installed, UsageError for a dump of what isn't compiled.
    """
    target = composition.required_target()
    if quick:
        return PlannedTarget(quick_report(composition, program))
    if compiler_devices(target) is None:
        why = f"no public compiler is for {target.device.name}: "
        if dump is not None:
            message = f"--dump {dump}: {why}there are no texts of a compiler to write"
            raise UsageError(message)
        return PlannedTarget(quick_report(composition, program, why))
    compilation = compile_program(composition, program, dump)
    return PlannedTarget(compiled_report(compilation), compilation)


def finished_report(planned: PlannedTarget, composition: Composition, prices: Prices | None) -> Report:
    """Returns a plan's report with its cost; of a decoding step with the target's room for caches,

    and of a training step that draws its own batches with all that such a step does.
    """
    report = planned.report
    if prices is not None:
        report = prices.priced(report, composition.required_target().device.name)
    if report.program == DECODE:
        report = dataclasses.replace(report, serving=dataclasses.asdict(serving_room(composition)))
    if report.program == "train_step":
        step = rollout_step(composition, report)
        report = report if step is None else dataclasses.replace(report, rollouts=dataclasses.asdict(step))
    return report
