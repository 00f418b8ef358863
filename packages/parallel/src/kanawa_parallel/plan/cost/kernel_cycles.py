"""How many cycles a program's kernels take: by their compiler's schedules, else by recorded ones.

Each distinct call is compiled alone, in a process of its own: dumping it with the whole program would write gigabytes.
The cycles are cached for the next plan, by the kernel's source, the problem, the chip and the compilers.
"""

import hashlib
import inspect
import json
import math
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import kanawa as kn
from kanawa.composition.target import Target, parse_target
from kanawa.errors import KanawaError
from kanawa.kernels.choice import KernelChoice
from kanawa.plugins import DeviceSpec, RecordedCycles, ScheduleRequest, host
from kanawa.status import stage

#: Cycles of each call of a kernel by the call's name, one entry for each choice by its scope.
Cycles = Mapping[str, tuple[tuple[str, float], ...]]


def scheduled_cycles(
    choices: Iterable[KernelChoice], target: Target, versions: Mapping[str, str]
) -> tuple[Cycles, list[str]]:
    """Returns the cycles of the kernels that a compiler schedules, and why the others couldn't be scheduled.

    Those take recorded cycles, if there are any.
    """
    known: dict[str, tuple[tuple[str, float], ...]] = {}
    failures: list[str] = []
    for choice, key in _counted(choices, target.device):
        request = ScheduleRequest(
            kernel=key,
            problem=choice.local_problem,
            target=_one_slice(target),
            differentiated=getattr(choice.local_problem, "mode", "train") == "train",
            tuning=choice.tuning,
        )
        try:
            calls = _cached(request, versions)
        except KanawaError as error:
            failures.append(f"{choice.kernel}: {str(error).splitlines()[0]}")
            calls = _recorded(choice, target.device)
        if calls:
            known[choice.scope] = calls
    return known, failures


def recorded_cycles(choices: Iterable[KernelChoice], device: DeviceSpec) -> Cycles:
    """Returns the cycles of the kernels of which a schedule was recorded, scaled from the nearest problem."""
    known = ((choice.scope, _recorded(choice, device)) for choice, _ in _counted(choices, device))
    return {scope: calls for scope, calls in known if calls}


def _counted(choices: Iterable[KernelChoice], device: DeviceSpec) -> Iterable[tuple[KernelChoice, str]]:
    """Yields the choices that make calls of their own on a device whose cycles are counted, with catalog keys."""
    if device.clock_hz is None:
        return
    keys = {state.name: state.key for state in host().components("kernels") if state.state.usable}
    for choice in choices:
        own = choice.kernel.split(".")[1:2] == [device.platform]
        if own and choice.local_problem is not None and choice.kernel in keys:
            yield choice, keys[choice.kernel]


def _one_slice(target: Target) -> Target:
    """Returns the smallest slice of the target's device: one device of it is compiled for."""
    spec = target.device
    if not spec.topologies:
        return target
    return parse_target(f"{spec.name}-{min(spec.topologies) * spec.cores_per_unit}")


def _cached(request: ScheduleRequest, versions: Mapping[str, str]) -> tuple[tuple[str, float], ...]:
    """Returns the cycles of a request's calls, from an earlier plan where nothing has changed since."""
    path = _folder() / f"{_digest(request, versions)}.json"
    try:
        return tuple((str(name), float(cycles)) for name, cycles in json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # not there, or not whole
        pass
    with stage(f"scheduling {request.kernel}"):
        schedules = kn.component("kernel_tools", "schedules")(request)
        calls = tuple((call.call, call.cycles) for call in schedules if call.cycles is not None)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(f".{uuid.uuid4().hex[:12]}")
        written.write_text(json.dumps(calls), encoding="utf-8")
        written.replace(path)
    except OSError:  # no home, no room: the next plan compiles again
        pass
    return calls


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "kanawa" / "schedules"


def _digest(request: ScheduleRequest, versions: Mapping[str, str]) -> str:
    # What reads a schedule counts too: packages in development change without a new version.
    made = (kn.component("kernels", request.kernel), type(request.problem), kn.component("kernel_tools", "schedules"))
    sources = tuple(_source(each) for each in made)
    asked = (request.kernel, repr(request.problem), request.target.device.name, request.differentiated, request.tuning)
    text = repr((asked, sorted(versions.items()), sources))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _source(made: Callable[..., Any]) -> str:
    """Returns the digest of the file that something is defined in; empty where it has none."""
    try:
        file = inspect.getsourcefile(made)
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
    except (OSError, TypeError):
        return ""


def _recorded(choice: KernelChoice, device: DeviceSpec) -> tuple[tuple[str, float], ...]:
    rows = [row for _, table in host().collect("kanawa_recorded_cycles") for row in table]
    rows = [row for row in rows if (row.kernel, row.device) == (choice.kernel, device.name) and row.matmul_flops]
    flops = choice.matmul_flops
    if not rows or not flops:
        return ()
    nearest = min(rows, key=lambda row: _distance(row, choice.local_problem))
    return tuple((name, cycles * flops / nearest.matmul_flops) for name, cycles in nearest.cycles.items())


def _distance(row: RecordedCycles, problem: Any) -> float:
    """Returns how unlike a problem's fields are: by a factor for numbers, and as much as e for each other one."""
    total = 0.0
    for name, value in vars(problem).items():
        other = row.problem.get(name)
        if _is_count(value) and _is_count(other):
            total += abs(math.log(value / other))
        elif str(value) != str(other):
            total += 1.0
    return total


def _is_count(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and value > 0
