"""The report of a quick plan: what `analyse` says of a compiled program, estimated from the traced one."""

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.interpreters import partial_eval
from kanawa.composition.environment import environment
from kanawa.composition.experiment import Composition
from kanawa.composition.prepare import Prepared, prepare
from kanawa.composition.target import Target
from kanawa.contracts import Program
from kanawa.contracts.program import manifest
from kanawa.kernels.outline import outline
from kanawa.plugins import Calibration, DeviceSpec
from kanawa.status import stage

from kanawa_parallel.plan.analyse import MFU_FORMULA, Asked, bubble, installed, parts_of
from kanawa_parallel.plan.compilation import Compilation
from kanawa_parallel.plan.cost.calibration import Choice, calibration_for, published, reached
from kanawa_parallel.plan.cost.kernel_cost import KernelCosts
from kanawa_parallel.plan.cost.kernel_cycles import recorded
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.memory import arguments as held
from kanawa_parallel.plan.memory.liveness import peak
from kanawa_parallel.plan.quick.buffers import Memory
from kanawa_parallel.plan.quick.equations import Scope, flat
from kanawa_parallel.plan.quick.layout import Layout, of_spec, whole
from kanawa_parallel.plan.quick.roofline import Machine, Roofline, Sent, Work
from kanawa_parallel.plan.quick.values import compiled_values, estimated_values
from kanawa_parallel.plan.quick.walk import Walked, walk
from kanawa_parallel.plan.read.attribution import known_names, module_of, module_paths, phase_of
from kanawa_parallel.plan.read.hlo import parse_module
from kanawa_parallel.plan.serving import DECODE, decode_program
from kanawa_parallel.plan.show.report import ModuleRow, Report, Traffic

#: How far quick plans were from compiled ones; docs/results/plan-accuracy.md has the table.
ACCURACY = (
    "mostly within 10 % of compiled plans in memory and time, at worst 42 % and 22 % off "
    "(docs/results/plan-accuracy.md)"
)
NOTE = f"a quick estimate from the traced program, nothing was compiled: {ACCURACY}"
#: What matmuls reach of peak where the compiler estimates its own cycles, and elementwise work of the bandwidth: so
#: the TPU compiler's programs of 7B and 70B decoders are scheduled.
_SCHEDULED_MATMULS, _SCHEDULED_MEMORY = 0.81, 0.6
#: How far a quick plan's time may be from the compiled one's: what its interval is widened by.
_ROOM = 1.15


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A traced program on a mesh: its layout, memory and times."""

    prepared: Prepared
    program: Program
    kernels: tuple[Any, ...]
    memory: Memory
    times: Roofline
    calibrated: Choice


def quick_report(composition: Composition, name: str, device: DeviceSpec | None = None) -> Report:
    """Returns the report of a program that is traced only; `device` replaces the target's figures."""
    begin = time.perf_counter()
    estimate = estimated(composition, name, device)
    with stage("adding up"):
        return _report(composition, estimate, device or composition.target.device, time.perf_counter() - begin)


def with_values(report: Report, composition: Composition, compilation: Compilation) -> Report:
    """Returns a compiled program's report with the names of what it holds at its fullest moment."""
    fullest = peak(compilation.assignment, compilation.live_ranges)
    if not fullest.buffers or not compilation.text:
        return report
    names = known_names(parse_module(compilation.text))
    estimate = estimated(composition, report.program)
    paths = module_paths(estimate.prepared.workload.model)
    rows = compiled_values(fullest, names, estimate.memory.at_peak, paths)
    return dataclasses.replace(report, held=tuple(rows))


def estimated(composition: Composition, name: str, device: DeviceSpec | None = None) -> Estimate:
    """Returns the named program traced for the target and laid out on its mesh; needs neither devices nor compiler."""
    target = composition.target
    prepared = prepare(composition, where=environment(composition, "abstract"))
    with outline():
        program = decode_program(prepared) if name == DECODE else prepared.program(name)
        traced = program.trace()
    kernels = manifest(traced.out_info)
    with stage("laying out"):
        mesh = {} if prepared.environment.mesh is None else dict(prepared.environment.mesh.shape)
        walked = laid_out(flat(_needed(traced.jaxpr)), program.abstract_args, mesh)
        memory = Memory(walked, in_place=bool(program.donate))
    with stage("timing"):
        figures = device or target.device
        choice = calibration_for(figures, installed())
        times = Roofline(
            walked,
            memory,
            _machine(figures, choice.calibration, target, KernelCosts.of(kernels, recorded(kernels, figures))),
        )
    return Estimate(prepared, program, kernels, memory, times, choice)


def _needed(jaxpr: Any) -> Any:
    """Returns a program without what no output follows from, in its loops too: compilers leave that out."""
    return partial_eval.dce_jaxpr(jaxpr.jaxpr, [True] * len(jaxpr.out_avals), instantiate=True)[0]


def laid_out(scope: Scope, abstract_args: Any, mesh: Mapping[str, int]) -> Walked:
    """Returns a traced program's scope on a mesh, from its abstract arguments' shardings."""
    leaves = jax.tree.leaves(abstract_args)
    hidden = len(scope.inputs) - len(leaves)
    arguments = [whole(value, free=True) for value in scope.inputs[:hidden]]
    for value, leaf in zip(scope.inputs[hidden:], leaves, strict=True):
        spec = getattr(getattr(leaf, "sharding", None), "spec", ())
        arguments.append(of_spec(value, spec))
        value.host = held.local_bytes(leaf) == 0 < value.bytes
    # A step gives its state back first, laid out as it came.
    wanted: list[Layout | None] = [None] * len(scope.outputs)
    for at, (value, given) in enumerate(zip(scope.outputs, scope.inputs[hidden:], strict=False)):
        if value is None or (value.shape, value.dtype) != (given.shape, given.dtype):
            break
        wanted[at] = arguments[hidden + at]
    return walk(scope, arguments, mesh, wanted)


def _machine(figures: DeviceSpec, calibration: Calibration, target: Target, kernels: KernelCosts) -> Machine:
    device = reached(figures, calibration)
    links = _links(device, target)
    fused = {name: share / calibration.compute_share for name, share in calibration.kernel_shares.items()}
    if figures.clock_hz is None:
        return Machine(device, links, kernels, kernel_factors=fused, hidden_cost=calibration.hidden_cost)
    # Where a compiler estimates matmuls itself, a calibration's share is of kernels alone.
    of_estimates = calibration.compute_share * calibration.estimate_factor
    memory = _SCHEDULED_MEMORY / (calibration.memory_share * calibration.estimate_factor)
    return Machine(device, links, kernels, _SCHEDULED_MATMULS / of_estimates, memory, fused, calibration.hidden_cost)


def _links(device: DeviceSpec, target: Target) -> Links:
    """Returns the links of the target's devices in a row, in the order of its topology where it has one."""
    links = Links.of(device, None, target.jax_devices)
    sides = [int(side) for side in target.topology.split("x")] if target.topology else []
    if not device.torus_dimensions or not sides:
        return links
    places = np.stack(np.unravel_index(np.arange(int(np.prod(sides))), sides), -1)
    per_slice = np.repeat(places, device.jax_devices_per_chip, axis=0)
    domains = np.repeat(np.arange(target.slices), len(per_slice))
    return Links(device, domains, np.tile(per_slice, (target.slices, 1)))


def _report(composition: Composition, estimate: Estimate, device: DeviceSpec, seconds: float) -> Report:
    target, program, times = composition.target, estimate.program, estimate.times
    asked = Asked.of(composition, estimate.prepared, program)
    arguments = held.argument_bytes(program.fn, program.abstract_args)
    memory = _memory(arguments, estimate)
    flops = sum(work.flops for work in times.work)
    limit = device.memory_bytes // device.jax_devices_per_chip
    fits = memory["total"] <= limit
    known = None if composition.changes else published(composition.name, target.selector)
    return Report(
        experiment=composition.name,
        target=target.selector,
        program=program.name,
        devices=target.jax_devices,
        chips=target.chips,
        compiled=False,
        quick=True,
        note=NOTE,
        fits=fits,
        memory=memory,
        memory_limit_bytes=limit,
        arguments_error=0.0,
        temporaries_error=0.0,
        flops_per_device=flops,
        flops_per_step=flops * target.jax_devices,
        model_flops_per_step=asked.flops,
        bytes_per_device=sum(work.bytes for work in times.work),
        tokens_per_step=asked.tokens,
        estimated_cycles=None,
        estimated_seconds=times.seconds.total,
        unestimated_seconds=times.seconds.compute,
        calibration=_wider(estimate.calibrated).as_json(),
        step_seconds_by=parts_of(times.seconds, bubble(estimate.prepared, program)) if fits else {},
        published_seconds=known.seconds if known else None,
        mesh=asked.mesh,
        kernels=[choice.as_json() for choice in estimate.kernels],
        traffic=_traffic(times),
        modules=_modules(asked.paths, arguments, estimate),
        phases=_phases(times.work),
        held=tuple(estimated_values(estimate.memory.at_peak, asked.paths)),
        compile_seconds=seconds,
        peak_flops=device.peak_flops.get(asked.dtype) or max(device.peak_flops.values()),
        mfu_formula=MFU_FORMULA,
        versions=installed(),
    )


def _wider(choice: Choice) -> Choice:
    """Returns the calibration with an interval that has room for the estimate's own error."""
    low, high = choice.calibration.interval
    return dataclasses.replace(
        choice, calibration=dataclasses.replace(choice.calibration, interval=(low / _ROOM, high * _ROOM))
    )


def _memory(arguments: dict[str, int], estimate: Estimate) -> dict[str, int]:
    kinds = held.by_kind(arguments)
    temporaries = round(estimate.memory.peak)
    return {**kinds, "temporaries": temporaries, "total": sum(kinds.values()) + temporaries}


def _traffic(times: Roofline) -> list[Traffic]:
    sums: dict[tuple[str, str, str], list[Sent]] = {}
    for item in times.sent:
        sums.setdefault(("+".join(item.axes) or "none", item.link, item.kind), []).append(item)
    rows = [
        Traffic(
            *key,
            count=sum(item.runs for item in items),
            bytes=sum(item.bytes for item in items),
            seconds=sum(item.seconds for item in items),
            exposed_seconds=sum(item.seconds for item in items if not item.early),
        )
        for key, items in sums.items()
    ]
    return sorted(rows, key=lambda row: -row.seconds)


def _modules(paths: frozenset[str], arguments: dict[str, int], estimate: Estimate) -> list[ModuleRow]:
    rows: dict[str, dict[str, Any]] = {}
    for path, kinds in held.by_module(arguments).items():
        rows.setdefault(path, {}).update(kinds)
    for buffer in estimate.memory.at_peak:
        row = rows.setdefault(module_of(buffer.path, paths), {})
        row["temporaries"] = row.get("temporaries", 0) + round(buffer.bytes)
    for work in estimate.times.work:
        row = rows.setdefault(module_of(work.path, paths), {})
        for name in ("flops", "bytes", "seconds"):
            row[name] = row.get(name, 0.0) + getattr(work, name)
    return [ModuleRow(path, **row) for path, row in sorted(rows.items())]


def _phases(items: list[Work]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for item in items:
        total[phase_of(item.path)] += item.seconds
    return dict(total)
