"""The hooks: a kernel's calls compiled in a fresh process that dumps their schedules, and cycles that were recorded."""

import json
import re
import tempfile
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kanawa.kernels.operation import Kernel
from kanawa.plugins import KernelSchedule, RecordedCycles, ScheduleRequest, component

from kanawa_backends_tpu.schedule.read import Call, read_schedule

#: Other names of a chip (`TPU7X` of device.py).
_ALSO = {"v7x": "tpu7x"}
TABLE = Path(__file__).with_name("recorded.json")


def recorded() -> list[RecordedCycles]:
    """Returns the table."""
    return [RecordedCycles(**row) for row in json.loads(TABLE.read_text(encoding="utf-8"))]


def recorded_cycles() -> list[RecordedCycles]:
    """Returns the table, a chip with two spellings by both."""
    rows = recorded()
    return [*rows, *(replace(row, device=_ALSO[row.device]) for row in rows if row.device in _ALSO)]


def kernel_schedules(request: ScheduleRequest) -> list[KernelSchedule]:
    """Returns the record of each call; raises KernelError where the kernel or the compiler refuses."""
    kernel: Kernel = component("kernels", request.kernel)()
    with tempfile.TemporaryDirectory(prefix="kanawa-schedule-") as name:
        folder = Path(name)
        calls = component("kernel_tools", "compile-apart", asker="kanawa-backends-tpu")(
            request, folder, _environment(folder)
        )
        schedules = []
        for number, record in enumerate(calls):
            flops = _matmuls(kernel, record["name"]) * request.problem.matmul_flops
            call = Call.from_record(record, flops, request.problem.visited_share)
            schedules.append(read_schedule(folder / str(number), call, request.target.device, compiler()))
        return schedules


def compiler() -> str:
    """Returns the compiler's distribution and version; without a wheel, as on a TPU host's own library, its name."""
    try:
        return f"libtpu {version('libtpu')}"
    except PackageNotFoundError:
        return "libtpu"


def _environment(folder: Path) -> dict[str, str]:
    # Only the last pass of each kernel: all of them are a hundred files and 30 MB.
    dump = f"--xla_jf_dump_to={folder / 'dump'}"
    flags = (dump, "--xla_jf_dump_llo_text=true", "--xla_jf_dump_llo_pass_label_regex=final")
    # libtpu asks a cloud's metadata server for the host's neighbours, and locks itself for one process.
    return {"LIBTPU_INIT_ARGS": " ".join(flags), "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_WORKER_HOSTNAMES": "localhost"}


def _matmuls(kernel: Kernel, call: str) -> float:
    """Returns how many matmuls of the problem's size the kernel's class says a call does; 0 where it doesn't."""
    return next((count for pattern, count in kernel.compiled_calls if re.search(pattern, call, re.IGNORECASE)), 0.0)
