"""Changes that make a plan fit, each planned before it is suggested."""

import dataclasses
import logging
import math
from collections.abc import Iterator

from kanawa.composition.experiment import Composition
from kanawa.errors import KanawaError
from kanawa.plugins import host

from kanawa_parallel.plan.programs.decode import DECODE
from kanawa_parallel.plan.programs.request import PlanRequest
from kanawa_parallel.plan.report.report import Report, Suggestion
from kanawa_parallel.plan.targets.plan import plan_target

logger = logging.getLogger(__name__)

#: How many changes that fit are suggested; the first is the least intrusive.
_ENOUGH = 2
_MICROBATCHES = (2, 4, 8, 16)


def with_suggestions(report: Report, composition: Composition, request: PlanRequest) -> Report:
    """Returns the report of a plan that doesn't fit with changes that make it fit, each planned the same way."""
    return report if report.fits else dataclasses.replace(report, suggestions=suggestions(report, composition, request))


def suggestions(report: Report, composition: Composition, request: PlanRequest) -> tuple[Suggestion, ...]:
    """Returns changes that make the plan fit, in the order of `candidates`, each verified by compiling it.

    If none does, those that need less memory than now, the smallest first.
    """
    fitting: list[Suggestion] = []
    failing: list[Suggestion] = []
    for change in candidates(composition, report):
        try:
            (changed,) = request.composed([report.target], change, composition.rule)
        except KanawaError as error:
            logger.info("suggestion %s dropped: %s", change, error)
            continue
        found = plan_target(changed, report.program).report
        text = " ".join(f"--modify {part}" for part in change)
        one = Suggestion(text, found.fits, found.memory_per_device_bytes, found.step_seconds or None, found.compiled)
        (fitting if one.fits else failing).append(one)
        if len(fitting) == _ENOUGH:
            break
    better = [one for one in failing if one.memory_per_device_bytes < report.memory_per_device_bytes]
    return tuple(fitting or sorted(better, key=lambda one: one.memory_per_device_bytes))


def candidates(composition: Composition, report: Report) -> Iterator[list[str]]:
    """Yields changes as modifiers: recompute, then split the batch too, then shard over everything, then offload.

    Changes that can't free enough are left out: recomputation and splitting act on temporaries only.
    """
    if report.program == DECODE:
        yield from ([sharded] for sharded in (_whole_mesh(report),) if sharded)
        return
    installed = {state.name for state in host().components("modifiers")}
    fixed = sum(report.memory.get(kind, 0) for kind in ("parameters", "optimizer", "state"))
    sharded = _whole_mesh(report)
    full = ["remat:policy=full"] if "remat" in installed and "stack" in composition.config.model.fields() else []
    if fixed < report.memory_limit_bytes:
        if full:
            yield full
        # Temporaries shrink with the rows at best in proportion; a count that can't be enough isn't compiled.
        enough = report.memory["temporaries"] / max(1, report.memory_limit_bytes - fixed)
        for count in _splits(composition, report) if "accumulate" in installed else ():
            if full or count >= enough:
                yield [*full, f"accumulate:microbatches={count}"]
    if sharded:
        yield [sharded]
        if full:
            yield [sharded, *full]
    missing = report.memory_per_device_bytes - report.memory_limit_bytes
    if "offload-optimizer" in installed and (full or report.memory.get("optimizer", 0) >= missing):
        yield [*full, "offload-optimizer"]


def _splits(composition: Composition, report: Report) -> list[int]:
    """Returns the numbers of microbatches whose rows still divide over the mesh."""
    shape = composition.config.batch_shape()
    rows = 1 if shape is None else shape.rows
    shards = math.prod(report.mesh.get(axis, 1) for axis in ("replica", "data", "fsdp", "expert"))
    return [n for n in _MICROBATCHES if rows % n == 0 and (rows // n) % shards == 0]


def _whole_mesh(report: Report) -> str:
    """Returns the modifier that shards parameters over all devices, where they aren't."""
    if report.mesh.get("fsdp", 1) == report.devices or report.devices == 1:
        return ""
    # Axes that split the computation itself stay; the rest of the mesh becomes fsdp.
    others = {
        name: size
        for name, size in report.mesh.items()
        if name in ("tensor", "context", "expert", "stage") and size > 1
    }
    axes = ",".join([f'"{name}":{size}' for name, size in others.items()] + ['"fsdp":-1'])
    return f"mesh:axes={{{axes}}}"
