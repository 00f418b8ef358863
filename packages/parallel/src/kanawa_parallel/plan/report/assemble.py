"""A report from what one device does in a step, whether a compiled program was counted or a traced one estimated."""

import dataclasses
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from kanawa.composition.prepare import Prepared
from kanawa.contracts import Program
from kanawa.kernels.choice import KernelChoice
from kanawa.plugins import DeviceSpec

from kanawa_parallel.passes import idle_share, layers_of_stages
from kanawa_parallel.plan.cost.calibration import Choice, published_step
from kanawa_parallel.plan.cost.work import Seconds, Sent, Work, axes_text
from kanawa_parallel.plan.memory import arguments
from kanawa_parallel.plan.programs.decode import DECODE
from kanawa_parallel.plan.read.attribution import module_of, module_paths
from kanawa_parallel.plan.report.report import HeldRow, ModuleRow, Report, Traffic

MFU_FORMULA = (
    "model FLOPs per step / (chips * peak FLOP/s * step seconds); model FLOPs are 3 * forward matmul FLOPs per token "
    "* tokens, attention over the keys a causal mask leaves, recomputation not counted"
)
#: Distributions whose versions a plan depends on, besides the target's compiler.
_VERSIONS = ("kanawa", "kanawa-parallel", "jax", "jaxlib")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """What one device holds and does in a step; `at_figures` are the seconds if the device's figures were reached.

    `arguments` are bytes by argument path, `temporaries` bytes at the fullest moment by module.
    """

    kernels: Sequence[KernelChoice]
    memory: dict[str, int]
    arguments: Mapping[str, int]
    temporaries: Mapping[str, int]
    work: Sequence[Work] = ()
    sent: Sequence[Sent] = ()
    seconds: Seconds = dataclasses.field(default_factory=Seconds)
    at_figures: Seconds = dataclasses.field(default_factory=Seconds)
    flops: float = 0.0
    held: tuple[HeldRow, ...] = ()
    #: The compiler gave up because the program doesn't fit.
    exceeded: bool = False


def assemble(
    prepared: Prepared, program: Program, device: DeviceSpec, counts: Counts, choice: Choice, **about: Any
) -> Report:
    """Returns the report of a program on `device`, the target's or one with measured figures.

    `about` are fields of the report that say how the counts were made.
    """
    composition = prepared.composition
    target = composition.required_target()
    request = ModelRequest.of_program(prepared, program)
    limit = device.memory_bytes // device.jax_devices_per_chip
    fits = not counts.exceeded and counts.memory["total"] <= limit
    # What others published is of the experiment as it stands, not of a changed one of the same name.
    known = None if composition.changes else published_step(composition.name, target.selector)
    return Report(
        experiment=composition.name,
        target=target.selector,
        program=program.name,
        devices=target.jax_devices,
        chips=target.chips,
        fits=fits,
        memory=counts.memory,
        memory_limit_bytes=limit,
        flops_per_device=counts.flops,
        flops_per_step=counts.flops * target.jax_devices,
        model_flops_per_step=request.flops,
        bytes_per_device=sum(item.bytes for item in counts.work),
        tokens_per_step=request.tokens,
        estimated_cycles=sum(item.cycles for item in counts.work) or None,
        estimated_seconds=counts.at_figures.total,
        unestimated_seconds=counts.at_figures.unestimated,
        calibration=choice.as_json(),
        step_seconds_by=_parts(counts.seconds, _idle_share(prepared, program)) if fits else {},
        published_seconds=known.seconds if known else None,
        mesh=request.mesh,
        layers_of_stages=layers_of_stages(prepared.workload.model, request.mesh.get("stage", 1)),
        kernels=[each.as_json() for each in counts.kernels],
        communication=_traffic(counts.sent),
        modules=_modules(request.paths, counts),
        held=counts.held,
        peak_flops=device.peak_flops.get(request.dtype) or max(device.peak_flops.values()),
        mfu_formula=MFU_FORMULA,
        versions=installed_versions(device),
        **about,
    )


@dataclasses.dataclass(frozen=True)
class ModelRequest:
    """What the model itself asks for: tokens, FLOPs by its own count, its modules, the mesh and the matmuls' dtype."""

    tokens: int
    flops: float
    paths: frozenset[str]
    mesh: dict[str, int]
    dtype: str

    @classmethod
    def of_program(cls, prepared: Prepared, program: Program) -> "ModelRequest":
        """Reads the shapes of the program's inputs and counts by the model's own `flops_per_row`."""
        model: Any = prepared.workload.model
        own: float | None = None
        shape = prepared.composition.config.batch_shape()
        if program.name == DECODE and shape is not None:
            # A decoding step reads the whole cache for its one new token.
            rows, length, context, passes = shape.rows, 1, float(shape.length), 1
        else:
            # Under a causal mask query t sees t + 1 keys. A training step is worth three forward passes: the backward
            # has two matmuls for each of the forward's, one for each operand.
            batch = program.abstract_args[-1]
            # A row of another record counts as one position.
            rows, length = batch.input_ids.shape if "input_ids" in batch._fields else (batch[0].shape[0], 1)
            context, passes = (length + 1) / 2, 3 if program.name == "train_step" else 1
            held = zip(batch._fields, batch, strict=True)
            own = model.flops_per_row({name: array.shape[1:] for name, array in held if array is not None})
        mesh = prepared.environment.mesh
        tokens = rows * length
        flops = passes * (model.flops_per_token(context) * tokens if own is None else own * rows)
        names = {} if mesh is None or mesh.size == 1 else dict(mesh.shape)
        return cls(tokens, flops, module_paths(model), names, prepared.environment.plan.precision.compute)


def installed_versions(device: DeviceSpec) -> dict[str, str]:
    """Returns the versions that a plan for `device` depends on, its compiler's included."""
    versions = {}
    for name in filter(None, (*_VERSIONS, device.compiler)):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _parts(seconds: Seconds, idle: float) -> dict[str, float]:
    """Returns the parts of a step; a pipeline's idle ticks are part of what its loop computes, and shown apart."""
    busy = {"compute": seconds.compute, "memory": seconds.memory}
    return {
        **{name: value * (1 - idle) for name, value in busy.items()},
        "exposed_communication": sum(seconds.exposed.values()),
        "pipeline_bubble": sum(busy.values()) * idle,
    }


def _idle_share(prepared: Prepared, program: Program) -> float:
    """Returns the idle share of a training step's pipeline; decoding's stages take turns, which is all its loop."""
    if program.name == DECODE:
        return 0.0
    mesh = prepared.environment.mesh
    stages = 1 if mesh is None else dict(mesh.shape).get("stage", 1)
    return idle_share(prepared.composition.config, prepared.workload.model, stages)


def _traffic(sent: Sequence[Sent]) -> list[Traffic]:
    """Returns what is sent by axes, link and kind of collective, the longest first."""
    groups: dict[tuple[str, str, str], list[Sent]] = {}
    for item in sent:
        groups.setdefault((axes_text(item.axes), item.link, item.kind), []).append(item)
    rows = [
        Traffic(
            *key,
            count=sum(item.runs for item in items),
            bytes=sum(item.bytes for item in items),
            seconds=sum(item.seconds for item in items),
            exposed_seconds=sum(item.exposed_seconds for item in items),
        )
        for key, items in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.seconds)


def _modules(paths: frozenset[str], counts: Counts) -> list[ModuleRow]:
    rows: dict[str, dict[str, Any]] = {}
    for path, kinds in arguments.bytes_by_module(counts.arguments).items():
        rows.setdefault(path, {}).update(kinds)
    for path, size in counts.temporaries.items():
        rows.setdefault(path, {})["temporaries"] = size
    for item in counts.work:
        row = rows.setdefault(module_of(item.path, paths), {})
        for name in ("flops", "bytes", "seconds"):
            row[name] = row.get(name, 0.0) + getattr(item, name)
    return [ModuleRow(path, **row) for path, row in sorted(rows.items())]
