"""The hook that this package calls, for backends to implement."""

from __future__ import annotations

from collections.abc import Sequence

from kanawa.plugins import KernelSchedule, ScheduleRequest, hookspec


@hookspec
def kanawa_kernel_schedules(request: ScheduleRequest) -> Sequence[KernelSchedule] | None:
    """Returns what the compiler makes of each call of a kernel, or None if the target is not this plugin's.

    Forward calls first, in program order; empty where the kernel makes no call of its own, but leaves its work to XLA.
    Compiles, without the device. Raises TargetError, saying what to install, if the compiler is not there, and
    KernelError with the compiler's words if it refuses the kernel.
    """
