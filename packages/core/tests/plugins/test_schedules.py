"""The record of a compiled kernel, and how a backend is asked for it."""

import types

import pytest
from kanawa.errors import TargetError
from kanawa.plugins import Backend, DeviceSpec, KernelSchedule, RecordedCycles, Region, ScheduleRequest

MOON = DeviceSpec(
    name="m1", platform="moon", memory_bytes=1, memory_bandwidth=1, link_bandwidth=1, network_bandwidth=1,
    chips_per_host=1, clock_hz=2e9, source="a test",
)  # fmt: skip
CALL = KernelSchedule(
    call="dust",
    direction="forward",
    compiler="lunar 1",
    regions=(Region(name="before", bundles=10), Region(name="loop", bundles=30, runs=4)),
    cycles=1e6,
)


def schedules(request: ScheduleRequest) -> list[KernelSchedule]:
    return [CALL]


def nothing() -> list[str]:
    return []


def lunar() -> list[str]:
    return ["lunar"]


def backend(**parts: str) -> Backend:
    return Backend(
        platform="moon", devices="a:b", mesh_rules="a:b", findings="a:b", install="kanawa-backends-moon[moon]", **parts
    )


def request_on(device: DeviceSpec) -> ScheduleRequest:
    target = types.SimpleNamespace(device=device, selector="m1-4")
    return ScheduleRequest(kernel="attention.moon.dust", problem=None, target=target)


def test_length_and_seconds_at_the_clock():
    assert CALL.bundles == 40
    assert CALL.seconds(MOON) == 1e6 / 2e9


def test_a_backend_answers_for_its_platform_alone():
    asked = backend(kernel_schedules=f"{__name__}:schedules", missing_compiler=f"{__name__}:nothing")
    assert asked.kanawa_kernel_schedules(request_on(MOON)) == [CALL]
    other = DeviceSpec(**{**MOON.__dict__, "platform": "sun"})
    assert asked.kanawa_kernel_schedules(request_on(other)) is None
    assert backend().kanawa_kernel_schedules(request_on(MOON)) is None


def recorded() -> list[RecordedCycles]:
    return [RecordedCycles(kernel="k", device="m1", compiler="c", problem={}, matmul_flops=1.0, cycles={"dust": 2.0})]


def test_recorded_cycles_are_a_backends_to_give():
    assert backend(recorded_cycles=f"{__name__}:recorded").kanawa_recorded_cycles() == recorded()
    assert backend().kanawa_recorded_cycles() == ()


def test_a_backend_without_its_compiler_says_what_to_install():
    asked = backend(kernel_schedules=f"{__name__}:schedules", missing_compiler=f"{__name__}:lunar")
    with pytest.raises(TargetError, match=r'missing: lunar; run: pip install "kanawa-backends-moon\[moon\]"'):
        asked.kanawa_kernel_schedules(request_on(MOON))
