"""From a compiled program to a report: everything counted, nothing run."""

from collections import Counter
from collections.abc import Mapping

from kanawa.plugins import DeviceSpec
from kanawa.status import stage

from kanawa_parallel.plan.compiled.compilation import Compilation
from kanawa_parallel.plan.cost.calibration import calibration_for
from kanawa_parallel.plan.cost.kernel_cost import KernelCosts, recorded_cycles
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.cost.machine import Machine
from kanawa_parallel.plan.cost.timing import Timing
from kanawa_parallel.plan.cost.work import Seconds
from kanawa_parallel.plan.memory.arguments import argument_bytes, bytes_by_kind
from kanawa_parallel.plan.memory.liveness import Peak, bytes_by_owner, find_peak
from kanawa_parallel.plan.quick.buffers import Buffer
from kanawa_parallel.plan.quick.estimate import WORKING, estimated, name_of
from kanawa_parallel.plan.read.attribution import known_names, module_of, module_paths
from kanawa_parallel.plan.read.hlo import arrays, device_dtype, parse_module
from kanawa_parallel.plan.report.assemble import Counts, assemble, installed_versions
from kanawa_parallel.plan.report.report import HeldRow, Report, value_rows


def compiled_report(compilation: Compilation, device: DeviceSpec | None = None) -> Report:
    """Returns the report of a compiled program; `device` replaces the target's figures, such as with measured ones."""
    with stage("counting what it does"):
        return _counted(compilation, device or compilation.target.device)


def _counted(compilation: Compilation, device: DeviceSpec) -> Report:
    prepared, program, memory = compilation.prepared, compilation.program, compilation.memory
    module = parse_module(compilation.text) if compilation.text else None
    cycles = recorded_cycles(compilation.kernels, device)
    choice = calibration_for(device, installed_versions(device))
    links = Links.of_devices(device, compilation.devices, compilation.target.jax_devices)
    machine = Machine(device, links, KernelCosts.of_choices(compilation.kernels, cycles))
    timing = None if module is None else Timing(module, compilation.mesh, machine)
    # Where the compiler gave up, its last text is of a program that it never finished.
    timed = None if timing is None or memory.exceeded else timing
    calibrated = None if timed is None else timed.reaching(choice.calibration)
    arguments = argument_bytes(program.fn, program.abstract_args)
    fullest = find_peak(compilation.assignment, compilation.live_ranges)
    names = {} if module is None else known_names(module)
    paths = module_paths(prepared.workload.model)
    seconds = Seconds() if calibrated is None else calibrated.step()
    counts = Counts(
        kernels=compilation.kernels,
        memory=_memory(compilation, arguments, fullest),
        arguments=arguments,
        temporaries=bytes_by_owner(fullest, lambda name: module_of(names.get(name, ""), paths)),
        work=[] if timing is None else timing.work(),
        sent=[] if timing is None else timing.sent(seconds),
        seconds=seconds,
        at_figures=Seconds() if timed is None else timed.step(),
        flops=0.0 if timing is None else timing.total_flops(),
        held=_held(compilation, fullest, names, paths),
        exceeded=memory.exceeded,
    )
    return assemble(
        prepared,
        program,
        device,
        counts,
        choice,
        compiled=True,
        arguments_error=sum(arguments.values()) / memory.arguments - 1 if memory.arguments else 0.0,
        temporaries_error=fullest.error,
        compile_seconds=compilation.seconds,
    )


def _memory(compilation: Compilation, arguments: dict[str, int], fullest: Peak) -> dict[str, int]:
    """Returns bytes by kind; `alignment` is what the compiler pads arguments with."""
    stated = compilation.memory
    kinds = bytes_by_kind(arguments)
    if stated.exceeded:
        # A compiler that gives up states one number for everything: what isn't arguments is counted as temporaries.
        return {**kinds, "temporaries": stated.temporaries - sum(kinds.values()), "total": stated.temporaries}
    return {
        **kinds,
        "alignment": stated.arguments - sum(kinds.values()),
        "outputs_not_in_place": stated.outputs - stated.aliased,
        "temporaries": stated.temporaries,
        "temporaries_live_at_peak": fullest.bytes,
        "code": stated.code,
        "total": stated.total,
    }


def _held(
    compilation: Compilation, fullest: Peak, op_names: Mapping[str, str], paths: frozenset[str]
) -> tuple[HeldRow, ...]:
    """Returns the values of the fullest moment, largest first.

    A loop's stacked values bear the loop's name in a compiled program. They are named after those of the traced program
    that have as many bytes in the same dtype.
    """
    if not fullest.buffers or not op_names:
        return ()
    stacked: dict[tuple[str, int], list[Buffer]] = {}
    for each in estimated(compilation.prepared.composition, compilation.program.name).memory.at_peak:
        if each.stacked:
            stacked.setdefault((each.value.dtype, round(each.bytes)), []).append(each)
    total: Counter[tuple[str, str]] = Counter()
    for buffer in fullest.buffers:
        shapes = arrays(buffer.shape)
        key = (device_dtype(shapes[0].dtype), shapes[0].bytes) if len(shapes) == 1 else ("", 0)
        if alike := stacked.get(key):
            total[name_of(alike.pop(0), paths)] += buffer.size
        else:
            owner = module_of(op_names.get(buffer.name.partition("{")[0], ""), paths)
            total[owner, WORKING] += buffer.size
    return value_rows(total)
