"""Writes the cycles of TPU kernels by libtpu's schedules: `python tests/support/tpu_recorded.py [DEVICE|KERNEL]…`.

Compiles them again after a new libtpu, or a change of a kernel. Rows of the named devices and kernels are replaced, all
without a name. About ten minutes a device.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

from kanawa.plugins import KernelSchedule, RecordedCycles
from kanawa_backends_tpu.schedule.compiled import TABLE, recorded

_DEVICES = ("v5e", "v5p", "v6e", "v7x")
_NARROW: dict[str, Any] = {"head_dim": 64, "v_head_dim": 64, "scale": 0.125}
_WIDE: dict[str, Any] = {"head_dim": 256, "v_head_dim": 256, "num_heads": 16, "scale": 0.0625}
#: Kernels in the order in which they are compiled, and what differs from each one's typical problem.
_PROBLEMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("attention.tpu.flash", {}),
    ("attention.tpu.splash", {}),
    ("grouped_matmul.tpu.megablox", {}),
    ("attention.tpu.flash", _NARROW),
    ("attention.tpu.splash", _NARROW),
    ("attention.tpu.flash", _WIDE),
    ("attention.tpu.splash", _WIDE),
)
_KERNELS = tuple(dict.fromkeys(kernel for kernel, _ in _PROBLEMS))


def fields_of(problem: Any) -> dict[str, Any]:
    """Returns a problem's fields as they are recorded: numbers, and all else as text."""
    return {name: value if type(value) in (int, float) else str(value) for name, value in vars(problem).items()}


def row(kernel: str, device: str, problem: Any, flops: float, calls: list[KernelSchedule]) -> RecordedCycles:
    """Returns the record of one kernel's calls."""
    cycles = {call.call: call.cycles for call in calls if call.cycles is not None}
    return RecordedCycles(
        kernel=kernel,
        device=device,
        compiler=calls[0].compiler,
        problem=fields_of(problem),
        matmul_flops=flops,
        cycles={name: round(value, 1) for name, value in cycles.items()},
    )


def _asked(devices: tuple[str, ...], kernels: tuple[str, ...]) -> Iterator[tuple[str, str, Any]]:
    from kanawa.testing.compare import examples_for

    for kernel, change in _PROBLEMS:
        if kernel not in kernels:
            continue
        typical = examples_for(kernel.partition(".")[0]).typical
        for device in devices:
            yield kernel, device, dataclasses.replace(typical, **change)


def record(devices: tuple[str, ...] = _DEVICES, kernels: tuple[str, ...] = _KERNELS) -> Iterator[RecordedCycles]:
    """Compiles every problem of the kernels on each device, one after the other."""
    from kanawa.composition.target import parse_target
    from kanawa.plugins import ScheduleRequest, component
    from kanawa.plugins.devices import device_specs

    for kernel, device, problem in _asked(devices, kernels):
        spec = device_specs()[device]
        target = parse_target(f"{device}-{min(spec.topologies) * spec.cores_per_unit}")
        request = ScheduleRequest(kernel=kernel, problem=problem, target=target)
        calls = component("kernel_tools", "schedules")(request)
        yield row(kernel, device, problem, request.problem.matmul_flops, calls)


def main(names: tuple[str, ...]) -> None:
    """Writes each row as it is made, and drops at first what the table had of these kernels on these devices.

    A row of an earlier kernel is worse than none: a nearer problem would hide the new one, whose fields differ.
    """
    devices = tuple(name for name in names if name in _DEVICES) or _DEVICES
    kernels = tuple(name for name in names if name in _KERNELS) or _KERNELS
    unknown = sorted(set(names) - set(_DEVICES) - set(_KERNELS))
    if unknown:
        message = f"no device or kernel: {', '.join(unknown)}; there are {', '.join((*_DEVICES, *_KERNELS))}"
        raise SystemExit(message)
    kept = {_key(each): each for each in recorded() if each.device not in devices or each.kernel not in kernels}
    for made in record(devices, kernels):
        kept[_key(made)] = made
        rows = [dataclasses.asdict(kept[key]) for key in sorted(kept)]
        TABLE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _key(one: RecordedCycles) -> tuple[str, str, str]:
    return one.device, one.kernel, json.dumps(one.problem, sort_keys=True)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
