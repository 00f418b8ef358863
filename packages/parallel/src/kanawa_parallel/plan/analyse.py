"""From a compiled program to a report: everything counted, nothing run."""

import dataclasses
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from kanawa.composition.experiment import Composition
from kanawa.composition.prepare import Prepared
from kanawa.contracts import Program
from kanawa.plugins import DeviceSpec

from kanawa_parallel.passes import idle_share
from kanawa_parallel.plan.compilation import Compilation
from kanawa_parallel.plan.cost.calibration import calibration_for, published
from kanawa_parallel.plan.cost.kernel_cost import KernelCosts
from kanawa_parallel.plan.cost.kernel_cycles import Cycles, scheduled
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.cost.timing import Seconds, Timing
from kanawa_parallel.plan.larger import joined
from kanawa_parallel.plan.memory import arguments as held
from kanawa_parallel.plan.memory.liveness import Peak, by_owner, peak
from kanawa_parallel.plan.read.attribution import known_names, module_of, module_paths, phase_of
from kanawa_parallel.plan.read.fusing import fused
from kanawa_parallel.plan.read.hlo import parse_module
from kanawa_parallel.plan.serving import DECODE
from kanawa_parallel.plan.show.report import ModuleRow, Report, Traffic
from kanawa_parallel.plan.show.units import duration

MFU_FORMULA = (
    "model FLOPs per step / (chips * peak FLOP/s * step seconds); model FLOPs are 3 * forward matmul FLOPs per token "
    "* tokens, attention over the keys a causal mask leaves, recomputation not counted"
)
#: Of the seconds of gathers, the part that has to wait for them to be told, and of the step's.
_MOST_WAITING, _WORTH_SAYING = 0.95, 0.01
_COMPILERS = ("libtpu", "jax-cuda13-pjrt")
_VERSIONS = ("kanawa", "kanawa-parallel", "jax", "jaxlib", "libtpu", "jax-cuda13-pjrt")


def analyse(composition: Composition, compilation: Compilation, device: DeviceSpec | None = None) -> Report:
    """Returns the report; `device` replaces the target's figures, such as with measured ones."""
    if compilation.cut is not None:
        return _whole(composition, compilation, device)
    target = composition.target
    device = device or target.device
    asked = Asked.of(composition, compilation.prepared, compilation.program)
    versions = installed()
    cycles, unscheduled = scheduled(compilation.kernels, target, versions) if compilation.compiled else ({}, [])
    timing = _timing(compilation, device, target.jax_devices, cycles)
    # Where the compiler gave up, its last text is of a program that it never finished.
    finished = timing is not None and not compilation.memory.exceeded
    at_peak = timing.step() if timing and finished else Seconds()
    choice = calibration_for(device, versions)
    seconds = timing.reaching(choice.calibration).step() if timing and finished else at_peak
    arguments = held.argument_bytes(compilation.program.fn, compilation.program.abstract_args)
    temporaries = peak(compilation.assignment, compilation.live_ranges)
    memory = _memory(compilation, arguments, temporaries)
    flops = timing.total_flops() if timing else 0.0
    items = timing.work() if timing else []
    names = known_names(parse_module(compilation.text)) if compilation.text else {}
    cycles = sum(item.cycles for item in items)
    # What others published is of the experiment as it stands, not of a changed one of the same name.
    known = None if composition.changes else published(composition.name, target.selector)
    limit = device.memory_bytes // device.jax_devices_per_chip
    fits = not compilation.memory.exceeded and memory["total"] <= limit
    stated = compilation.memory.arguments
    return Report(
        experiment=composition.name,
        target=target.selector,
        program=compilation.program.name,
        devices=target.jax_devices,
        chips=target.chips,
        compiled=compilation.compiled,
        note="; ".join(filter(None, (compilation.note or _in_the_open(timing, seconds, versions), *unscheduled))),
        fits=fits,
        memory=memory,
        memory_limit_bytes=limit,
        arguments_error=sum(arguments.values()) / stated - 1 if stated else 0.0,
        temporaries_error=temporaries.error,
        flops_per_device=flops,
        flops_per_step=flops * target.jax_devices,
        model_flops_per_step=asked.flops,
        bytes_per_device=sum(item.bytes for item in items),
        tokens_per_step=asked.tokens,
        estimated_cycles=cycles or None,
        estimated_seconds=at_peak.total,
        unestimated_seconds=at_peak.unestimated,
        calibration=choice.as_json(),
        step_seconds_by=parts_of(seconds, bubble(compilation.prepared, compilation.program)) if fits else {},
        published_seconds=known.seconds if known else None,
        mesh=asked.mesh,
        kernels=[choice.as_json() for choice in compilation.kernels],
        traffic=_traffic(timing, seconds),
        modules=_modules(
            asked.paths,
            arguments,
            temporaries,
            names,
            items,
        ),
        phases=_phases(items),
        compile_seconds=compilation.seconds,
        peak_flops=device.peak_flops.get(asked.dtype) or max(device.peak_flops.values()),
        mfu_formula=MFU_FORMULA,
        versions=versions,
    )


def _whole(composition: Composition, compilation: Compilation, device: DeviceSpec | None) -> Report:
    """Returns the report of a mesh that two smaller ones stand for."""
    asked = Asked.of(composition, compilation.prepared, compilation.program)
    known = None if composition.changes else published(composition.name, composition.target.selector)
    full = {
        "tokens_per_step": asked.tokens,
        "model_flops_per_step": asked.flops,
        "mesh": asked.mesh,
        "published_seconds": known.seconds if known else None,
    }
    arguments = held.argument_bytes(compilation.program.fn, compilation.program.abstract_args)
    reports = [analyse(part, compiled, device) for part, compiled in compilation.parts]
    return joined(reports, compilation.cut, held.by_kind(arguments), full)


@dataclasses.dataclass(frozen=True)
class Asked:
    """What the model itself asks for: tokens, FLOPs by its own count, its modules, the mesh and the matmuls' dtype."""

    tokens: int
    flops: float
    paths: frozenset[str]
    mesh: dict[str, int]
    dtype: str

    @classmethod
    def of(cls, composition: Composition, prepared: Prepared, program: Program) -> "Asked":
        """Reads the shapes of the program's inputs and counts by the model's own `flops_per_token`."""
        model = prepared.workload.model
        rows, length, context, passes = _shape(composition, program)
        mesh = prepared.environment.mesh
        tokens = rows * length
        flops = passes * model.flops_per_token(context) * tokens
        names = {} if mesh is None or mesh.size == 1 else dict(mesh.shape)
        return cls(tokens, flops, module_paths(model), names, prepared.environment.plan.precision.compute)


def installed() -> dict[str, str]:
    """Returns the versions that a plan depends on."""
    versions = {}
    for name in _VERSIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _shape(composition: Composition, program: Program) -> tuple[int, int, float, int]:
    """Returns (rows, tokens a row, keys a query sees on average, passes in units of a forward one)."""
    shape = composition.config.batch_shape()
    # A decoding step reads the whole cache for its one new token.
    if program.name == DECODE and shape is not None:
        return shape.rows, 1, float(shape.length), 1
    rows, length = program.abstract_args[-1].input_ids.shape
    # Under a causal mask query t sees t + 1 keys. A training step is worth three forward passes: the backward has two
    # matmuls for each of the forward's, one for each operand.
    return rows, length, (length + 1) / 2, 3 if program.name == "train_step" else 1


def _timing(compilation: Compilation, device: DeviceSpec, count: int, cycles: Cycles) -> Timing | None:
    if not compilation.text:
        return None
    # Devices of a CPU have no places on a network; the target's are then taken to stand in a row.
    real = compilation.devices if compilation.compiled and device.platform != "cpu" else None
    mesh = compilation.environment.mesh
    # A compiler for the target would fuse otherwise than the CPU's, which also widens bfloat16.
    before = compilation.partitioned
    return Timing(
        fused(parse_module(before)) if before else parse_module(compilation.text),
        device,
        {} if mesh is None else dict(mesh.shape),
        Links.of(device, real, count),
        KernelCosts.of(compilation.kernels, cycles),
    )


def _memory(compilation: Compilation, arguments: dict[str, int], temporaries: Peak) -> dict[str, int]:
    """Returns bytes by kind; `alignment` is what the compiler pads arguments with."""
    stated = compilation.memory
    kinds = held.by_kind(arguments)
    if stated.exceeded:
        # A compiler that gives up states one number for everything: what isn't arguments is counted as temporaries.
        return {**kinds, "temporaries": stated.temporaries - sum(kinds.values()), "total": stated.temporaries}
    return {
        **kinds,
        "alignment": stated.arguments - sum(kinds.values()),
        "outputs_not_in_place": stated.outputs - stated.aliased,
        "temporaries": stated.temporaries,
        "temporaries_live_at_peak": temporaries.bytes,
        "code": stated.code,
        "total": stated.total,
    }


def parts_of(seconds: Seconds, idle: float) -> dict[str, float]:
    """Returns the split of a step; a pipeline's idle ticks are part of what its loop computes, and shown apart."""
    busy = {"compute": seconds.compute, "memory": seconds.memory}
    return {
        **{name: value * (1 - idle) for name, value in busy.items()},
        "exposed_communication": sum(seconds.exposed.values()),
        "pipeline_bubble": sum(busy.values()) * idle,
    }


def bubble(prepared: Prepared, program: Program) -> float:
    """Returns the idle share of a training step's pipeline; decoding's stages take turns, which is all its loop."""
    if program.name == DECODE:
        return 0.0
    mesh = prepared.environment.mesh
    stages = 1 if mesh is None else dict(mesh.shape).get("stage", 1)
    return idle_share(prepared.composition.config, prepared.workload.model, stages)


def _in_the_open(timing: Timing | None, seconds: Seconds, versions: dict[str, str]) -> str:
    """Returns what to say where a compiler has its gathers wait, which others run beside matmuls; maybe nothing."""
    if timing is None or not seconds.total or timing.device.platform == "cpu":
        return ""
    gathers = [(runs * item.seconds, item) for runs, item in timing.communication() if item.kind == "all-gather"]
    waiting = sum(each for each, item in gathers if not item.starts)
    if waiting < _MOST_WAITING * sum(each for each, _ in gathers) or waiting < _WORTH_SAYING * seconds.total:
        return ""
    axes = ", ".join(sorted({"+".join(item.axes) for _, item in gathers}))
    compiler = next((f"{name} {versions[name]}" for name in _COMPILERS if name in versions), "the compiler")
    return (
        f"no all-gather over {axes} runs beside compute: {compiler} fuses none of them with matmuls, which leaves "
        f"{duration(waiting)} a step exposed ({waiting / seconds.total:.1%})"
    )


def _traffic(timing: Timing | None, seconds: Seconds) -> list[Traffic]:
    sums: dict[tuple[str, str, str], list[float]] = {}
    for runs, item in timing.communication() if timing else []:
        row = sums.setdefault(("+".join(item.axes) or "none", item.link, item.kind), [0.0, 0.0, 0.0])
        for position, value in enumerate((1.0, item.bytes, item.seconds)):
            row[position] += runs * value
    rows = [Traffic(*key, *row) for key, row in sums.items()]
    total: Counter[tuple[str, str]] = Counter()
    for row in rows:
        total[row.axes, row.link] += row.seconds
    # The schedule knows what is exposed by axes and link; it is shared out over the kinds of collectives there by their
    # time.
    shares = {key: seconds.exposed.get(key, 0.0) / value for key, value in total.items() if value}
    ranked = sorted(rows, key=lambda row: -row.seconds)
    return [dataclasses.replace(r, exposed_seconds=r.seconds * shares.get((r.axes, r.link), 0.0)) for r in ranked]


def _modules(
    paths: frozenset[str], arguments: dict[str, int], temporaries: Peak, names: dict[str, str], items: list[Any]
) -> list[ModuleRow]:
    rows: dict[str, dict[str, Any]] = {}
    for path, kinds in held.by_module(arguments).items():
        rows.setdefault(path, {}).update(kinds)
    for path, size in by_owner(temporaries, lambda name: module_of(names.get(name, ""), paths)).items():
        rows.setdefault(path, {})["temporaries"] = size
    for item in items:
        row = rows.setdefault(module_of(item.op_name, paths), {})
        for name in ("flops", "bytes", "seconds"):
            row[name] = row.get(name, 0.0) + getattr(item, name)
    return [ModuleRow(path, **row) for path, row in sorted(rows.items())]


def _phases(items: list[Any]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for item in items:
        total[phase_of(item.op_name)] += item.seconds
    return dict(total)
