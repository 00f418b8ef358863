"""The report of a quick plan: what is counted in a compiled program, estimated from the traced one."""

import contextlib
import dataclasses
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.interpreters import partial_eval
from kanawa.composition.environment import environment
from kanawa.composition.experiment import Composition
from kanawa.composition.prepare import Prepared, prepare
from kanawa.composition.target import Target
from kanawa.config import digest
from kanawa.contracts import Program
from kanawa.contracts.program import manifest
from kanawa.kernels.platform import outline
from kanawa.plugins import DeviceSpec
from kanawa.status import stage

from kanawa_parallel.plan.cost.calibration import Choice, calibration_for
from kanawa_parallel.plan.cost.kernel_cost import KernelCosts, recorded_cycles
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.cost.machine import Machine
from kanawa_parallel.plan.memory.arguments import argument_bytes, bytes_by_kind, local_bytes
from kanawa_parallel.plan.programs.decode import DECODE, ROLLOUT_DECODE, decode_program
from kanawa_parallel.plan.quick.accuracy import accuracy
from kanawa_parallel.plan.quick.buffers import Buffer, Memory
from kanawa_parallel.plan.quick.equations import Scope, flat_scope
from kanawa_parallel.plan.quick.layout import Layout, layout_of_spec, replicated
from kanawa_parallel.plan.quick.roofline import Rates, Roofline
from kanawa_parallel.plan.quick.stage import (
    PipelineMemory,
    PipelineTimes,
    one_stage,
    pipeline_memory,
    pipeline_times,
)
from kanawa_parallel.plan.quick.walk import Walked, lay_out
from kanawa_parallel.plan.read.attribution import module_of, module_paths
from kanawa_parallel.plan.report.assemble import Counts, assemble, installed_versions
from kanawa_parallel.plan.report.report import Report, value_rows

#: What matmuls reach of peak where the compiler estimates its own cycles, and elementwise work of the bandwidth: so
#: programs of 7B and 70B decoders were scheduled.
_SCHEDULED_MATMULS, _SCHEDULED_MEMORY = 0.81, 0.6
#: How far a quick plan's time may be from the compiled one's: what its interval is widened by.
_ROOM = 1.15
#: What a value without a name is called: by its role.
_STACKED, WORKING = "saved for each layer", "in use"
K = TypeVar("K")


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A traced program on a mesh: its layout, memory and times."""

    prepared: Prepared
    program: Program
    kernels: tuple[Any, ...]
    memory: Memory | PipelineMemory
    times: Roofline | PipelineTimes
    calibrated: Choice


#: The plan of the placement that was chosen last, by its question: what asked for the placement plans it next.
_KEPT: dict[tuple[str, str], Estimate] = {}


def keep(estimate: Estimate) -> None:
    """Has the next plan of the same training step be this one; any other that was kept is dropped."""
    _KEPT.clear()
    _KEPT[_key(estimate.prepared.composition)] = estimate


def _key(composition: Composition) -> tuple[str, str]:
    return digest(composition.config, "all"), repr(composition.required_target())


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Traces make millions of objects that live till their plan is done: looking for cycles takes a quarter more."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def quick_report(composition: Composition, name: str, why: str = "") -> Report:
    """Returns the report of a program that is traced only; its note begins with the reason `why`."""
    begin = time.perf_counter()
    device = composition.required_target().device
    estimate = estimated(composition, name)
    with stage("adding up"):
        traced, times, held = estimate.program, estimate.times, estimate.memory.at_peak
        arguments = argument_bytes(traced.fn, traced.abstract_args)
        # Of a pipeline a stage was traced.
        program = estimate.prepared.program(name) if isinstance(times, PipelineTimes) else traced
        paths = module_paths(estimate.prepared.workload.model)
        known = accuracy(name, estimate.kernels, device.platform, times.walked)
        counts = Counts(
            kernels=estimate.kernels,
            memory=_memory(arguments, estimate),
            arguments=arguments,
            temporaries=_sizes_by(held, lambda buffer: module_of(buffer.path, paths)),
            work=times.work,
            sent=times.sent,
            seconds=times.seconds,
            at_figures=dataclasses.replace(times.seconds, unestimated=times.seconds.compute),
            flops=sum(work.flops for work in times.work),
            held=value_rows(_sizes_by(held, lambda buffer: name_of(buffer, paths))),
        )
        return assemble(
            estimate.prepared,
            program,
            device,
            counts,
            _wider(estimate.calibrated),
            compiled=False,
            quick=True,
            note=f"{why}a quick estimate from the traced program, nothing was compiled: {known}",
            arguments_error=0.0,
            temporaries_error=0.0,
            compile_seconds=time.perf_counter() - begin,
        )


def estimated(composition: Composition, name: str) -> Estimate:
    """Returns the named program traced for the target and laid out on its mesh; needs neither devices nor compiler."""
    held = _KEPT.pop(_key(composition), None) if _KEPT and name == "train_step" else None
    if held is not None:
        return dataclasses.replace(held, prepared=dataclasses.replace(held.prepared, composition=composition))
    with without_collector():
        return _estimated(composition, name)


def _estimated(composition: Composition, name: str) -> Estimate:
    staged = one_stage(composition) if name == "train_step" else None
    composed = composition if staged is None else staged.composition
    target = composed.required_target()
    prepared = prepare(composed, where=environment(composed, "abstract"))
    with outline():
        program = decode_program(prepared, name) if name in (DECODE, ROLLOUT_DECODE) else prepared.program(name)
        traced = program.trace()
    kernels = manifest(traced.out_info)
    with stage("laying out"):
        mesh = {} if prepared.environment.mesh is None else dict(prepared.environment.mesh.shape)
        walked = lay_out_program(flat_scope(_without_dead_code(traced.jaxpr)), program.abstract_args, mesh)
        memory = Memory(walked, in_place=bool(program.donate))
    with stage("timing"):
        device = target.device
        choice = calibration_for(device, installed_versions(device))
        costs = KernelCosts.of_choices(kernels, recorded_cycles(kernels, device))
        machine = Machine(
            device, target_links(device, target), costs, choice.calibration.traced.get(device.name, choice.calibration)
        )
        rates = Rates(machine) if device.name in choice.calibration.traced else _rates(machine)
        if staged is None:
            return Estimate(prepared, program, kernels, memory, Roofline(walked, memory, rates), choice)
        whole = prepare(composition, where=environment(composition, "abstract"))
        times = pipeline_times(staged, walked, memory, rates)
        return Estimate(whole, program, kernels, pipeline_memory(staged, memory), times, choice)


def _without_dead_code(jaxpr: Any) -> Any:
    """Returns a program without dead code, in its loops too: compilers drop it."""
    return partial_eval.dce_jaxpr(jaxpr.jaxpr, [True] * len(jaxpr.out_avals), instantiate=True)[0]


def lay_out_program(scope: Scope, abstract_args: Any, mesh: Mapping[str, int]) -> Walked:
    """Returns a traced program's scope on a mesh, from its abstract arguments' shardings."""
    leaves = jax.tree.leaves(abstract_args)
    hidden = len(scope.inputs) - len(leaves)
    arguments = [replicated(value, free=True) for value in scope.inputs[:hidden]]
    for held, leaf in zip(scope.inputs[hidden:], leaves, strict=True):
        spec = getattr(getattr(leaf, "sharding", None), "spec", ())
        arguments.append(layout_of_spec(held, spec))
        held.host = local_bytes(leaf) == 0 < held.bytes
    # A step returns its state first, in the layout of its arguments.
    wanted: list[Layout | None] = [None] * len(scope.outputs)
    for at, (value, argument) in enumerate(zip(scope.outputs, scope.inputs[hidden:], strict=False)):
        if value is None or (value.shape, value.dtype) != (argument.shape, argument.dtype):
            break
        wanted[at] = arguments[hidden + at]
    return lay_out(scope, arguments, mesh, wanted)


def _rates(machine: Machine) -> Rates:
    """Returns what traced programs reach: of a compiler's own estimates where it makes them, else of the figures."""
    if machine.figures.clock_hz is None:
        return Rates(machine)
    # Where a compiler estimates matmuls itself, a calibration's share is of kernels alone.
    calibration = machine.calibration
    of_estimates = calibration.compute_share * calibration.estimate_factor
    memory = _SCHEDULED_MEMORY / (calibration.memory_share * calibration.estimate_factor)
    return Rates(machine, _SCHEDULED_MATMULS / of_estimates, memory)


def target_links(device: DeviceSpec, target: Target) -> Links:
    """Returns the links of the target's devices in a row, in the order of its topology where it has one."""
    links = Links.of_devices(device, None, target.jax_devices)
    sides = [int(side) for side in target.topology.split("x")] if target.topology else []
    if not device.torus_dimensions or not sides:
        return links
    places = np.stack(np.unravel_index(np.arange(int(np.prod(sides))), sides), -1)
    per_slice = np.repeat(places, device.jax_devices_per_chip, axis=0)
    domains = np.repeat(np.arange(target.slices), len(per_slice))
    return Links(device, domains, np.tile(per_slice, (target.slices, 1)))


def _wider(choice: Choice) -> Choice:
    """Returns the calibration with an interval that has room for the estimate's own error."""
    low, high = choice.calibration.interval
    return dataclasses.replace(
        choice, calibration=dataclasses.replace(choice.calibration, interval=(low / _ROOM, high * _ROOM))
    )


def _memory(arguments: Mapping[str, int], estimate: Estimate) -> dict[str, int]:
    kinds = bytes_by_kind(arguments)
    temporaries = round(estimate.memory.peak)
    return {**kinds, "temporaries": temporaries, "total": sum(kinds.values()) + temporaries}


def _sizes_by(at_peak: Iterable[Buffer], owner: Callable[[Buffer], K]) -> dict[K, int]:
    sizes: Counter[K] = Counter()
    for buffer in at_peak:
        sizes[owner(buffer)] += round(buffer.bytes)
    return dict(sizes)


def name_of(buffer: Buffer, paths: frozenset[str]) -> tuple[str, str]:
    """Returns the module that a traced value belongs to, and what it is called there."""
    role = _STACKED if buffer.stacked else WORKING
    return module_of(buffer.path, paths), f"{buffer.tag}, {role}" if buffer.tag else role
