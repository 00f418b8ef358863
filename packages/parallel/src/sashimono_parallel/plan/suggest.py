"""What to change when a plan doesn't fit, each change compiled before it is offered."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from sashimono.compose.experiment import Composition
from sashimono.errors import SashimonoError
from sashimono.plugins import host

from sashimono_parallel.plan.analyse import analyse
from sashimono_parallel.plan.compilation import compile_program
from sashimono_parallel.plan.problems import compositions
from sashimono_parallel.plan.report import Report, Suggestion

logger = logging.getLogger(__name__)

#: How many changes that fit are offered; the first is the least intrusive.
_ENOUGH = 2
_MICROBATCHES = (2, 4, 8, 16)


def suggestions(
    composition: Composition, report: Report, modifiers: Sequence[str], overrides: Sequence[str], dump: Path | None
) -> tuple[Suggestion, ...]:
    """Returns changes that make the plan fit, in the order of `candidates`, each verified by compiling it.

    Those that turn out not to fit come after those that do.
    """
    fitting: list[Suggestion] = []
    failing: list[Suggestion] = []
    for change in candidates(composition, report):
        try:
            (changed,) = compositions(composition.name, [report.target], [*modifiers, *change], overrides)
            found = analyse(changed, compile_program(changed, report.program, dump))
        except SashimonoError as error:
            logger.info("suggestion %s dropped: %s", change, error)
            continue
        text = " ".join(f"--modify {part}" for part in change)
        seconds = found.step_seconds or None
        one = Suggestion(text, found.fits, found.memory_per_device_bytes, seconds)
        (fitting if one.fits else failing).append(one)
        if len(fitting) == _ENOUGH:
            break
    return (*fitting, *failing)


def candidates(composition: Composition, report: Report) -> Iterator[list[str]]:
    """Yields changes as modifiers: recompute, then split the batch too, then shard over everything, then offload.

    Those that can't reach what is missing are left out: recomputation and splitting act on temporaries only.
    """
    installed = {state.name for state in host().components("modifiers")}
    fixed = sum(report.memory.get(kind, 0) for kind in ("parameters", "optimizer", "state"))
    sharded = _whole_mesh(report)
    training = report.program == "train_step"
    if fixed < report.memory_limit_bytes and training:
        if "remat" in installed:
            yield ["remat:policy=full"]
        if "accumulate" in installed:
            rows = getattr(composition.config, "batch_size", 1)
            split = report.mesh.get("data", 1) * report.mesh.get("fsdp", 1) * report.mesh.get("replica", 1)
            fits = [n for n in _MICROBATCHES if rows % n == 0 and (rows // n) % split == 0]
            for count in fits:
                yield ["remat:policy=full", f"accumulate:microbatches={count}"]
    if sharded:
        yield [sharded]
        if training:
            yield [sharded, "remat:policy=full"]
    for name in ("offload_optimizer", "offload"):
        if name in installed and training:
            yield ["remat:policy=full", name]


def _whole_mesh(report: Report) -> str:
    """Returns the modifier that shards parameters over all devices, where they aren't."""
    if report.mesh.get("fsdp", 1) == report.devices or report.devices == 1:
        return ""
    kept = {
        name: size
        for name, size in report.mesh.items()
        if name in ("tensor", "context", "expert", "stage") and size > 1
    }
    axes = ",".join([f'"{name}":{size}' for name, size in kept.items()] + ['"fsdp":-1'])
    return f"mesh:axes={{{axes}}}"
