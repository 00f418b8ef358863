"""`kanawa kernels --schedule` for GPUs: a kernel's calls compiled without a GPU, as the assembler sees them.

XLA's dump has the PTX of every kernel, and each launch with its grid, threads and dynamic shared memory. NVIDIA's
assembler reports registers and spills, from which follows how many blocks fit a multiprocessor.
"""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from shutil import which
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from kanawa.composition.compile_cache import without_cache
from kanawa.errors import KernelError
from kanawa.kernels.selection import tuned
from kanawa.plugins import DeviceSpec, KernelHalf, KernelSchedule, ScheduleRequest, component

from kanawa_backends_gpu.target_config import LIMITS, Silicon, silicon

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_TARGET = re.compile(r"^\.target (sm_\w+)", re.MULTILINE)
#: A warp gets registers in multiples of this many, and a block shared memory beside the system's own KiB.
_REGISTER_STEP = 256
_SYSTEMS_SHARED_BYTES = 1024
_MOST_BLOCKS = 32


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """One kernel as assembled; bytes are a thread's, but for shared memory, which is a block's."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_shared_bytes: int


def assemble(ptx: Path) -> dict[str, Assembled]:
    """Returns the kernels of a PTX file by name; raises KernelError where there is no assembler or it refuses."""
    architecture = _TARGET.search(ptx.read_text(encoding="utf-8"))
    if architecture is None:
        message = f"{ptx} names no .target: it isn't PTX, or it was cut off"
        raise KernelError(message)
    command = [_assembler(), "-v", "--gpu-name", architecture[1], str(ptx), "--output-file", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"ptxas refused {ptx.name} for {architecture[1]}: {done.stderr.strip()[-500:]}"
        raise KernelError(message)
    return read_report(done.stdout + done.stderr)


def read_report(text: str) -> dict[str, Assembled]:
    """Returns the kernels in the output of `ptxas -v`, by name; raises KernelError where it reads otherwise."""
    parts = _ENTRY.split(text)[1:]
    kernels = {}
    for name, report in zip(parts[::2], parts[1::2], strict=True):
        spills, used, shared = _SPILLS.search(report), _USED.search(report), _SHARED.search(report)
        if spills is None or used is None:
            message = (
                f"ptxas reported {name} without its registers or spills; another version than 13's? {report[:300]!r}"
            )
            raise KernelError(message)
        kernels[name] = Assembled(
            registers=int(used[1]),
            stack_bytes=int(spills[1]),
            spill_store_bytes=int(spills[2]),
            spill_load_bytes=int(spills[3]),
            static_shared_bytes=0 if shared is None else int(shared[1]),
        )
    return kernels


def resident_blocks(chip: Silicon, *, registers: int, threads: int, shared_bytes: int) -> int:
    """Returns how many blocks of `threads` threads a multiprocessor holds at a time; 0 where not even one fits.

    CUDA C++ Programming Guide, "Technical specifications per compute capability".
    """
    warps = -(-threads // LIMITS["threads_per_warp"])
    of_warp = -(-registers * LIMITS["threads_per_warp"] // _REGISTER_STEP) * _REGISTER_STEP
    by_registers = LIMITS["registers_per_core_limit"] // (of_warp * warps)
    by_threads = LIMITS["threads_per_core_limit"] // (warps * LIMITS["threads_per_warp"])
    by_memory = chip.shared_memory_kib * 1024 // (shared_bytes + _SYSTEMS_SHARED_BYTES)
    return min(by_registers, by_threads, by_memory, _MOST_BLOCKS)


def _assembler() -> str:
    from kanawa_backends_gpu.topology import folders

    wheels = (Path(folder, "bin", "ptxas") for folder in folders("nvidia.cu13"))
    path = next((str(path) for path in wheels if path.exists()), None) or which("ptxas")
    if path is None:
        message = 'no ptxas: pip install "kanawa-backends-gpu[compile]", or put CUDA\'s on the PATH'
        raise KernelError(message)
    return path


_REGISTER_BYTES = 4
_LAUNCH = re.compile(r"kCustomKernel \[.*?\] (\S+) grid: \[([\d, ]+)\] threads: \[([\d, ]+)\]\s+shared_memory: (\d+)")
_PALLAS = re.compile(r"([\w.]+)/pallas_call")
_LIBRARY = re.compile(r'custom_call_target="(__cudnn\$\w+|__cublas[\w$]+)')


@dataclass(frozen=True)
class Launch:
    """How a program starts a kernel."""

    grid: tuple[int, ...]
    threads: int
    dynamic_shared_bytes: int


@dataclass(frozen=True)
class Compiled:
    """A compiled program as its dump shows it, and the bytes of its temporaries."""

    program: str
    launches: dict[str, Launch]
    assembled: dict[str, Assembled]
    temporary_bytes: int

    @property
    def calls(self) -> tuple[str, ...]:
        """The kernels that a Pallas call made, in the order of their launches."""
        names = set(_PALLAS.findall(self.program))
        # Two calls of one name: XLA numbers the second.
        return tuple(name for name in self.launches if re.sub(r"_\d+$", "", name) in names or name in names)

    @property
    def libraries(self) -> tuple[str, ...]:
        """The vendor's library calls, which show nothing of their kernels."""
        return tuple(sorted(set(_LIBRARY.findall(self.program))))


def kernel_schedules(request: ScheduleRequest) -> list[KernelSchedule]:
    """Returns one record for each Pallas call, forward first; none where the kernel is plain JAX.

    Raises KernelError for a kernel that a closed library computes.
    """
    device = request.target.device
    kernel = tuned(component("kernels", request.kernel)(), request.tuning)
    records: list[KernelSchedule] = []
    for half in component("kernel_tools", "halves", asker="kanawa-backends-gpu")(
        kernel, request.problem, request.differentiated
    ):
        compiled = compiled_half(half, device)
        if not compiled.calls and compiled.libraries:
            message = (
                f"{request.kernel} runs {', '.join(compiled.libraries)}: NVIDIA's library picks its kernel on the "
                f"device, and nothing of it is seen when compiling"
            )
            raise KernelError(message)
        records += [_record(name, half.direction, compiled, device) for name in compiled.calls]
    return records


def compiled_half(half: KernelHalf, device: DeviceSpec, options: Mapping[str, Any] | None = None) -> Compiled:
    """Returns a direction of a kernel compiled for one such GPU, with further compiler options."""
    from kanawa.composition.target import parse_target

    from kanawa_backends_gpu.topology import topology

    mesh = Mesh(np.array(topology(parse_target(device.name))[:1]), ("device",), axis_types=(AxisType.Auto,))
    whole = NamedSharding(mesh, PartitionSpec())
    with jax.set_mesh(mesh):
        traced = jax.jit(half.function, in_shardings=whole).trace(*half.arguments)
        lowered = traced.lower(lowering_platforms=("cuda",))
    return _compiled(lowered, options or {})


def _compiled(lowered: jax.stages.Lowered, further: Mapping[str, Any]) -> Compiled:
    with tempfile.TemporaryDirectory() as folder, without_cache():
        options: dict[str, Any] = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True, "xla_dump_emitter_re": "ptx"}
        options |= further
        program = lowered.compile(compiler_options=options)
        texts = [path.read_text(encoding="utf-8") for path in Path(folder).rglob("*thunk_sequence.txt")]
        assembled: dict[str, Assembled] = {}
        for path in sorted(Path(folder).rglob("*.ptx")):
            assembled |= assemble(path)
    return Compiled(program.as_text() or "", read_launches("\n".join(texts)), assembled, _temporaries(program))


def read_launches(text: str) -> dict[str, Launch]:
    """Returns the launches that XLA's thunk sequence names, by kernel, in order."""
    launches = {}
    for name, grid, threads, shared in _LAUNCH.findall(text):
        count = int(np.prod([int(n) for n in threads.split(",")]))
        launches[name] = Launch(tuple(int(n) for n in grid.split(",")), count, int(shared))
    return launches


def _temporaries(program: jax.stages.Compiled) -> int:
    memory = program.memory_analysis()
    return 0 if memory is None else memory.temp_size_in_bytes


def _record(name: str, direction: Any, compiled: Compiled, device: DeviceSpec) -> KernelSchedule:
    chip, launch = silicon(device), compiled.launches[name]
    if name not in compiled.assembled:
        message = f"XLA launches {name} but dumped no PTX of it; this reader knows jaxlib 0.11"
        raise KernelError(message)
    figures = compiled.assembled[name]
    shared = launch.dynamic_shared_bytes + figures.static_shared_bytes
    blocks = resident_blocks(chip, registers=figures.registers, threads=launch.threads, shared_bytes=shared)
    total, places = int(np.prod(launch.grid)), blocks * chip.multiprocessors
    notes = [
        f"{launch.threads} threads a block, {blocks} blocks a multiprocessor, {total} blocks: "
        f"{total / places:.2f} of what fits at a time" if places else "not one block fits a multiprocessor",
    ]  # fmt: skip
    if figures.spill_store_bytes:
        notes.append(f"{figures.spill_store_bytes} bytes a thread are spilt to local memory")
    return KernelSchedule(
        call=name,
        direction=direction,
        compiler=f"ptxas of nvidia-cuda-nvcc {_version('nvidia-cuda-nvcc')}, jaxlib {version('jaxlib')}",
        counted="instructions",
        grid=launch.grid,
        spills=figures.spill_store_bytes // _REGISTER_BYTES,
        fills=figures.spill_load_bytes // _REGISTER_BYTES,
        registers=figures.registers,
        shared_bytes=shared,
        occupancy=blocks * launch.threads / LIMITS["threads_per_core_limit"],
        notes=tuple(notes),
    )


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "from the PATH"
