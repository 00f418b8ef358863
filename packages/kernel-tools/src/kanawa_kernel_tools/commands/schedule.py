"""`kanawa kernels --schedule KERNEL --on T`: what the target's compiler makes of a kernel, on a machine without one."""

from __future__ import annotations

import argparse
import ast
import dataclasses
from typing import TYPE_CHECKING, Any

from kanawa.cli.output import write, write_json, write_table
from kanawa.errors import KernelError, UnknownNameError, UsageError, did_you_mean
from kanawa.plugins import ComponentState, KernelSchedule, ScheduleRequest, host

if TYPE_CHECKING:
    from kanawa.composition.target import Target
    from kanawa.kernels.operation import Kernel


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds --schedule, --problem and --tuning."""
    parser.add_argument(
        "--schedule",
        metavar="KERNEL",
        help="compile a kernel (`kanawa list kernels`) for --on and show its schedule: bundles, units, spills, cycles",
    )
    parser.add_argument(
        "--problem",
        metavar="field=value,...",
        help="with --schedule: what differs from a typical training problem, such as head_dim=64,mask.window=(99,None)",
    )
    parser.add_argument(
        "--tuning", metavar="name=value,...", help="with --schedule: settings in place of the kernel's own"
    )


def show_schedule(args: argparse.Namespace) -> int:
    """Shows the kernel's calls for one problem, or for those that an experiment has on the target."""
    if not args.on:
        message = "--schedule compiles for hardware that needn't be here: say which, such as --on v5p-8"
        raise UsageError(message)
    state = _kernel_state(args.schedule)
    target = _one_slice(args.on)
    kernel = _kernel(state, target)
    shown = []
    for problem in _problems(args, kernel):
        _check(kernel, problem, target)
        request = ScheduleRequest(
            kernel=state.key,
            problem=problem,
            target=target,
            differentiated=getattr(problem, "mode", "train") == "train",
            tuning=_tuning(args.tuning),
        )
        calls = _compiled(request)
        shown.append(_as_json(kernel, request, calls))
        if not args.json:
            _listed(kernel, request, calls)
    if args.json:
        write_json(shown)
    return 0


def _kernel_state(name: str) -> ComponentState:
    """Returns the installed kernel of that name, or of that distribution and name; raises UnknownNameError."""
    states = host().components("kernels")
    fitting = [state for state in states if name in (state.name, state.key)]
    if not fitting:
        near = did_you_mean(name, [state.name for state in states])
        message = f"no kernel {name!r} is installed{near}; `kanawa list kernels` names them all"
        raise UnknownNameError(message)
    if len({state.key for state in fitting}) > 1:
        message = f"{name!r} is offered by several; say which: {', '.join(state.key for state in fitting)}"
        raise UnknownNameError(message)
    return fitting[0]


def _one_slice(selector: str) -> Target:
    """Returns the smallest slice of the selector's device: one device of it is compiled for."""
    from kanawa.composition.target import parse_target
    from kanawa.plugins.devices import device_specs

    name = selector.strip().lower().partition("-")[0]
    spec = device_specs().get(name)
    if spec is None or not spec.topologies:
        return parse_target(selector)
    if name != selector.strip().lower():
        parse_target(selector)  # What can't be is an error, though only its device counts.
    return parse_target(f"{name}-{min(spec.topologies) * spec.cores_per_unit}")


def _kernel(state: ComponentState, target: Target) -> Kernel:
    from kanawa.plugins import component

    platform = target.device.platform
    own = state.name.split(".")[1]
    if own not in (platform, "any"):
        message = (
            f"{state.name} is a kernel for {own}, and {target.selector} is {platform}; "
            f"`kanawa list kernels` names those for {platform}"
        )
        raise UsageError(message)
    made: Kernel = component("kernels", state.key)()
    return made


def _problems(args: argparse.Namespace, kernel: Kernel) -> list[Any]:
    """Returns the problems to compile for; raises UsageError where there are none."""
    if getattr(args, "experiment", None):
        from kanawa.api.kernels import chosen_kernels
        from kanawa.cli.arguments import compose_from

        if args.problem:
            message = "--problem changes a typical problem, and an experiment has its own; leave out one of them"
            raise UsageError(message)
        choices = chosen_kernels(compose_from(args), args.program)
        met = [choice.local_problem for choice in choices if choice.operation == kernel.operation]
        problems = list(dict.fromkeys(problem for problem in met if problem is not None))
        if not problems:
            operations = ", ".join(sorted({choice.operation for choice in choices})) or "none"
            message = (
                f"{args.experiment} never calls {kernel.operation} in {args.program}; its operations: {operations}"
            )
            raise UsageError(message)
        return problems
    from kanawa.testing.compare import examples_for

    typical = examples_for(kernel.operation).typical
    if typical is None:
        message = f"{kernel.operation} has no typical problem; name an EXPERIMENT that calls it"
        raise UsageError(message)
    return [_changed(typical, _pairs(args.problem or "", "--problem"), "--problem")]


def _changed(problem: Any, changes: dict[str, Any], option: str) -> Any:
    """Returns the problem with fields replaced, those inside by dotted paths; raises UsageError."""
    for path, value in changes.items():
        first, _, rest = path.partition(".")
        names = [field.name for field in dataclasses.fields(problem)]
        if first not in names:
            message = f"{option}: {type(problem).__name__} has no field {first!r}{did_you_mean(first, names)}"
            raise UsageError(message)
        inner = getattr(problem, first)
        if rest and not dataclasses.is_dataclass(inner):
            message = f"{option}: {first} is {inner!r}, which has no fields; give {first}=VALUE"
            raise UsageError(message)
        new = _changed(inner, {rest: value}, option) if rest else value
        if not rest and not _alike(inner, new):
            message = f"{option}: {first} is {inner!r}; {new!r} isn't of its kind"
            raise UsageError(message)
        problem = dataclasses.replace(problem, **{first: new})
    return problem


def _alike(old: Any, new: Any) -> bool:
    """Returns whether a value may replace another: a default of None or a float takes any number."""
    if old is None or new is None:
        return True
    return isinstance(new, type(old)) or (isinstance(old, float) and isinstance(new, int))


def _pairs(text: str, option: str) -> dict[str, Any]:
    """Returns `name=value` pairs at commas outside brackets; values that are no literals are text."""
    pieces, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    pairs = {}
    for piece in filter(str.strip, pieces):
        name, equals, value = piece.strip().partition("=")
        if not equals:
            message = f"{option}: {piece.strip()!r} is no name=value"
            raise UsageError(message)
        pairs[name.strip()] = _literal(value.strip())
    return pairs


def _literal(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _tuning(text: str | None) -> tuple[tuple[str, int], ...]:
    pairs = _pairs(text or "", "--tuning")
    wrong = [name for name, value in pairs.items() if type(value) is not int]
    if wrong:
        message = f"--tuning: {wrong[0]}={pairs[wrong[0]]!r}; settings are whole numbers"
        raise UsageError(message)
    return tuple(pairs.items())


def _check(kernel: Kernel, problem: Any, target: Target) -> None:
    verdict = kernel.supports(problem, target.device)
    if not verdict:
        message = (
            f"{kernel.name} refuses {problem.describe()} on {target.device.name}: {verdict.reason}; "
            f"ask for another with --problem"
        )
        raise KernelError(message)


def _compiled(request: ScheduleRequest) -> list[KernelSchedule]:
    from kanawa.status import stage

    from kanawa_kernel_tools.schedules.compiled import schedules

    with stage(f"compiling {request.kernel} for {request.target.device.name}"):
        return schedules(request)


def _as_json(kernel: Kernel, request: ScheduleRequest, calls: list[KernelSchedule]) -> dict[str, Any]:
    device = request.target.device
    return {
        "kernel": kernel.name,
        "problem": request.problem.describe(),
        "device": device.name,
        "calls": [
            {**dataclasses.asdict(call), "bundles": call.bundles, "seconds": call.seconds(device)} for call in calls
        ],
    }


def _listed(kernel: Kernel, request: ScheduleRequest, calls: list[KernelSchedule]) -> None:
    device = request.target.device
    write(f"{kernel.name} on {device.name}, by {calls[0].compiler}")
    write(f"    for {request.problem.describe()}")
    for call in calls:
        write("")
        write(f"{call.direction} {call.call}")
        for line in _figures(call, call.seconds(device)):
            write(f"    {line}")
        if call.regions:
            _regions(call)
        for note in call.notes:
            write(f"    {note}")


def _figures(call: KernelSchedule, seconds: float | None) -> list[str]:
    lines = []
    if call.cycles is not None:
        time = f" ({seconds * 1e3:.3f} ms)" if seconds else ""
        share = f", {call.peak_share:.0%} of the matrix units' peak" if call.peak_share else ""
        cores = f" on each of {call.cores} cores" if call.cores > 1 else ""
        lines.append(f"{call.cycles:,.0f} cycles a call{cores}{time}{share}")
    if call.step_cycles is not None:
        grid = " x ".join(str(size or "?") for size in call.grid) or "1"
        lines.append(f"{call.step_cycles:,.0f} cycles a tile; grid of a core {grid}")
    registers = [] if call.registers is None else [f"{call.registers} registers a thread"]
    shared = [] if call.shared_bytes is None else [f"{call.shared_bytes:,} bytes shared"]
    occupancy = [] if call.occupancy is None else [f"occupancy {call.occupancy:.0%}"]
    length = [f"{call.bundles:,} {call.counted}"] if call.regions else []
    lines.append(", ".join([*length, *registers, *shared, *occupancy, f"{call.spills:,} spills, {call.fills:,} fills"]))
    return lines


def _regions(call: KernelSchedule) -> None:
    """Writes a table of the regions: how full they keep each unit."""
    units = [unit for unit in call.capacity if any(region.units.get(unit) for region in call.regions)]
    rows = []
    for region in call.regions:
        runs = "?" if region.runs is None else f"{region.runs:,.0f}"
        used = [_busy(region.units.get(unit, 0), region.bundles * call.capacity[unit]) for unit in units]
        rows.append(["    " + "  " * region.depth + region.name, f"{region.bundles:,}", runs, *used])
    write_table(["    region", call.counted, "runs", *units], rows)


def _busy(uses: int, places: int) -> str:
    return "" if not uses or not places else f"{uses / places:.0%}"
