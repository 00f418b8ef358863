"""What NVIDIA's assembler says of a kernel, registers and spills; and how many blocks of it fit a multiprocessor."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from kanawa.errors import KernelError

from kanawa_backends_gpu.target_config import LIMITS, Silicon

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
