"""What a compiler made of a kernel: the records of the hook `kanawa_kernel_schedules`, and cycles that were recorded.

One record fits compilers that count bundles and those that count registers: a backend leaves the others at None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kanawa.plugins.records import DeviceSpec


@dataclass(frozen=True, kw_only=True)
class Region:
    """A stretch of a compiled kernel that runs as a whole or not at all.

    Attributes:
        name: what it is, such as "loop over the grid", or the compiler's own name.
        depth: how many loops and branches enclose it.
        bundles: instructions it takes, those issued together counted once; without those of regions inside it.
        runs: how often one call runs it on one core; None where that depends on the data.
        units: how often it uses each unit, by the compiler's name, such as {"matrix": 512}.
    """

    name: str
    depth: int = 0
    bundles: int
    runs: float | None = None
    units: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class KernelSchedule:
    """One call of a kernel as its compiler scheduled it.

    Attributes:
        call: its name in a compiled program, such as "splash_mha_fwd_residuals".
        direction: of the operation, in which the kernel makes the call.
        compiler: distribution and version.
        counted: what `Region.bundles` counts, "bundles" or "instructions".
        cores: how many cores of a device share the call.
        grid: steps that one core takes in each dimension; empty where there is no grid.
        regions: in program order; empty where the compiler doesn't say.
        capacity: how many of each unit one bundle can use.
        spills: registers stored for want of room, and `fills` those loaded again, once through the program.
        registers: registers of one thread; `shared_bytes` on-chip memory of one block of threads.
        occupancy: threads that fit a multiprocessor at a time, over the most it can hold.
        step_cycles: cycles of a step of the grid that computes all of its tile.
        cycles: cycles of the call on one core; None where the compiler doesn't say.
        peak_share: of the matrix units' peak, while the call runs.
        notes: what a reader should know of these figures, one sentence each.
    """

    call: str
    direction: Literal["forward", "backward"]
    compiler: str
    counted: Literal["bundles", "instructions"] = "bundles"
    cores: int = 1
    grid: tuple[int, ...] = ()
    regions: tuple[Region, ...] = ()
    capacity: Mapping[str, int] = field(default_factory=dict, hash=False)
    spills: int = 0
    fills: int = 0
    registers: int | None = None
    shared_bytes: int | None = None
    occupancy: float | None = None
    step_cycles: float | None = None
    cycles: float | None = None
    peak_share: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def bundles(self) -> int:
        """Length of the whole program."""
        return sum(region.bundles for region in self.regions)

    def seconds(self, device: DeviceSpec) -> float | None:
        """Returns how long the call takes at the device's clock; None where either isn't known."""
        return None if self.cycles is None or not device.clock_hz else self.cycles / device.clock_hz


@dataclass(frozen=True, kw_only=True)
class ScheduleRequest:
    """What a backend is asked to compile and read: one kernel, for one problem, on one kind of device.

    Attributes:
        kernel: the catalog key, `operation.platform.name` or `distribution:operation.platform.name`.
        problem: the local problem (`kanawa.kernels.Problem`), which the kernel supports.
        target: a `Target`, of which one device counts.
        differentiated: whether to compile the backward calls too.
        tuning: what the kernel is to run with in place of its own choice, such as (("block_q", 512),).
    """

    kernel: str
    problem: Any
    target: Any
    differentiated: bool = True
    tuning: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class KernelHalf:
    """One direction of a kernel as a function of arrays, and the shapes that it takes."""

    direction: Literal["forward", "backward"]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class RecordedCycles:
    """What a kernel's calls took for one problem by a compiler's schedule, for machines that don't have the compiler.

    Attributes:
        kernel: the catalog name.
        device: a DeviceSpec's name.
        compiler: distribution and version.
        problem: its fields by name, as text or numbers.
        matmul_flops: FLOPs of one of its matmuls.
        cycles: of each call, by its name in a compiled program.
    """

    kernel: str
    device: str
    compiler: str
    problem: Mapping[str, Any] = field(hash=False)
    matmul_flops: float
    cycles: Mapping[str, float] = field(hash=False)
