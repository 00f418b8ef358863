"""Compiles one program for a target that isn't here, and keeps all that the compiler says about it."""

import contextlib
import dataclasses
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh
from kanawa.composition.compile_cache import without_cache
from kanawa.composition.environment import environment
from kanawa.composition.experiment import Composition
from kanawa.composition.prepare import Prepared, prepare
from kanawa.contracts import Environment, Program
from kanawa.errors import KanawaError, TargetError
from kanawa.plugins import host
from kanawa.status import stage

from kanawa_parallel.plan.larger import Smaller, smaller, with_rows
from kanawa_parallel.plan.serving import DECODE, decode_program

#: Ends of the names of the dump's file with the final program, best first.
_FINAL = (".after_codegen.txt", "gpu_after_optimizations.txt", "cpu_after_optimizations.txt", "after_optimizations.txt")
#: The dump after XLA partitioned the program, whatever pass comes next.
_PARTITIONED = ".spmd-partitioner.after_spmd-partitioning.before_*.txt"
#: For a CPU that stands in for a target: its machine code never runs, so it may be as slow as it likes.
_STAND_IN = {
    "xla_dump_hlo_pass_re": "spmd-partitioning",
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
#: What compilers say of a program that needs more memory than there is: the bytes, in two forms.
_USED = re.compile(r"(?:[Uu]sed ([\d.]+)([KMGT])i?B? of|temporaries \(([\d.]+)([KMGT])\) exceeds)")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
#: A CPU device's number holds its process above 11 bits.
MOST_CPU_DEVICES = 2048


class CompileError(KanawaError):
    """The compiler refused the program for another reason than memory."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes a device holds, by the compiler's account; `exceeded` if it gave up because they don't fit."""

    arguments: int = 0
    outputs: int = 0
    aliased: int = 0
    temporaries: int = 0
    code: int = 0
    exceeded: bool = False

    @property
    def total(self) -> int:
        """All of it; outputs that take an argument's place count once."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@dataclasses.dataclass(frozen=True)
class Compilation:
    """A compiled program: its texts, memory, kernels, devices in mesh order, and how long compiling took."""

    program: Program
    prepared: Prepared
    kernels: tuple[Any, ...]
    memory: Memory
    text: str
    assignment: str
    live_ranges: str
    devices: tuple[Any, ...] | None
    seconds: float
    compiled: bool
    executable: Any = None
    note: str = ""
    #: The program as XLA partitioned it, before any compiler fused it, where the target's own can't be asked to.
    partitioned: str = ""
    #: Where the mesh has more devices than a CPU stands in for: how it was cut, and what the smaller ones gave.
    cut: Smaller | None = None
    parts: tuple[tuple[Composition, "Compilation"], ...] = ()

    @property
    def environment(self) -> Environment:
        """Where the program was compiled for."""
        return self.prepared.environment


def environment_for(composition: Composition) -> tuple[Environment, tuple[Any, ...] | None, str]:
    """Returns the environment on the target's compile-only devices, those in mesh order, and what to say of them.

    Raises TargetError where the target's compiler is missing.
    """
    target = composition.target
    if target is None:
        message = "plan needs a target; give one with --on, such as --on v5p-512, h100-256 or cpu-8"
        raise TargetError(message)
    note = ""
    offered = [devices for _, devices in host().collect("kanawa_topology", target=target) if devices]
    if offered:
        env = _on_devices(environment(composition, offered[0]), offered[0])
    else:
        note = _without_compiler(composition)
        provide_cpu_devices(target.jax_devices)
        env = environment(composition, jax.devices("cpu"))
        # The options are the target's compiler's; the CPU's would refuse them by name.
        env = dataclasses.replace(env, compiler_options={})
    devices = None if env.mesh is None else tuple(env.mesh.devices.flat)
    return env, devices, note


def _without_compiler(composition: Composition) -> str:
    """Returns what to say of a target that no compiler here is for; nothing of a CPU."""
    device = None if composition.target is None else composition.target.device
    if device is None or device.platform == "cpu":
        return ""
    return f"not compiled for {device.name}: no public compiler; from XLA's partitioned HLO and figures"


def _on_devices(env: Environment, devices: Sequence[jax.Device]) -> Environment:
    """Returns the environment with a mesh, of one device if it has none.

    Without any sharding JAX would compile for this process's own processor, whose compiler knows none of the options.
    """
    if env.mesh is not None:
        return env
    alone = Mesh(np.array(list(devices[:1])), ("data",), axis_types=(AxisType.Auto,))
    return dataclasses.replace(env, mesh=alone)


def compile_program(composition: Composition, name: str, dump: Path | None = None) -> Compilation:
    """Returns the named program compiled; its dump stays in `dump` if given. Raises what keeps it from compiling."""
    if _too_many(composition):
        return _in_parts(composition, name, dump)
    env, devices, note = environment_for(composition)
    return _compiled(prepare(composition, where=env), name, devices, note, dump)


def _too_many(composition: Composition) -> bool:
    """Returns whether a CPU would have to stand in for more devices than it can."""
    target = composition.target
    if target is None or target.device.platform == "cpu" or target.jax_devices <= MOST_CPU_DEVICES:
        return False
    return not any(devices for _, devices in host().collect("kanawa_topology", target=target))


def _in_parts(composition: Composition, name: str, dump: Path | None) -> Compilation:
    """Returns what is known of the whole mesh without compiling, with two smaller ones compiled."""
    env = dataclasses.replace(environment(composition, "abstract"), compiler_options={})
    prepared = prepare(composition, where=env)
    program, shape = _program(prepared, name), dict(env.mesh.shape) if env.mesh is not None else {}
    cut = smaller(shape, program, MOST_CPU_DEVICES)
    rows, note = composition.config.batch_shape(), _without_compiler(composition)
    sizes = [shape | {cut.axis: size} for size in cut.sizes]
    provide_cpu_devices(math.prod(sizes[0].values()))
    parts = []
    for size in sizes:
        fewer = with_rows(composition, rows.rows * size[cut.axis] // cut.size if rows is not None else 0)
        devices = np.array(jax.devices("cpu")[: math.prod(size.values())]).reshape(tuple(size.values()))
        mesh = Mesh(devices, tuple(size), axis_types=(AxisType.Auto,) * len(size))
        here = prepare(fewer, where=dataclasses.replace(env, mesh=mesh))
        folder = None if dump is None else dump / f"{cut.axis}-{size[cut.axis]}"
        parts.append((fewer, _compiled(here, name, tuple(devices.flat), note, folder)))
    kernels, seconds = parts[0][1].kernels, sum(part.seconds for _, part in parts)
    return Compilation(
        program, prepared, kernels, Memory(), "", "", "", None, seconds, False, None, note, cut=cut, parts=tuple(parts)
    )


def _compiled(
    prepared: Prepared, name: str, devices: tuple[Any, ...] | None, note: str, dump: Path | None
) -> Compilation:
    env, program = prepared.environment, _program(prepared, name)
    lowered = program.lower()
    # The target itself would get other kernels than the CPU that stands in for it; tracing is enough to know them.
    kernels = lowered.kernels if not note else _program(_there(prepared), name).kernels()
    with _folder(dump) as folder:
        options = dict(env.compiler_options) | {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True}
        options |= _STAND_IN if note else {}
        begin = time.perf_counter()
        with stage("compiling, a minute or several for a pod"):
            executable, memory = _compile(lowered.lowered, options)
        seconds = time.perf_counter() - begin
        with stage("reading the compiler's program"):
            text, assignment, ranges = read_dump(folder)
        partitioned = _largest(folder, _PARTITIONED) if note else ""
    return Compilation(
        program, prepared, kernels, memory, text, assignment, ranges, devices, seconds, not note, executable, note,
        partitioned,
    )  # fmt: skip


def read_dump(folder: Path) -> tuple[str, str, str]:
    """Returns the final program, its buffer assignment and its live ranges; empty where the dump has none."""
    ends = (_FINAL, ("buffer-assignment.txt",), ("live-range.txt",))
    final, assignment, ranges = (_largest(folder, *each) for each in ends)
    return final, assignment, ranges


def _largest(folder: Path, *ends: str) -> str:
    """Returns the text of the dump's largest file that ends as asked, the first end that any has."""
    for end in ends:
        written = sorted(folder.glob(f"*{end}"), key=lambda path: path.stat().st_size)
        if written:
            # Small helper programs (a cast, a constant) leave dumps too: the step's is the largest.
            return written[-1].read_text(encoding="utf-8", errors="replace")
    return ""


def provide_cpu_devices(count: int) -> None:
    """Makes this process have `count` CPU devices, if JAX hasn't started yet; raises TargetError if it has fewer."""
    if count > MOST_CPU_DEVICES:
        message = (
            f"this plan needs {count:,} CPU devices, one for each of the target's, and XLA gives a process "
            f"{MOST_CPU_DEVICES:,} at most; plan a smaller part of the target, with as many rows a device"
        )
        raise TargetError(message)
    if count > 1:
        # JAX refuses to change the number once its devices exist; whether there are enough is checked below.
        with contextlib.suppress(RuntimeError):
            if jax.config.jax_num_cpu_devices < count and "xla_force_host_platform" not in os.environ.get(
                "XLA_FLAGS", ""
            ):
                jax.config.update("jax_num_cpu_devices", count)
    present = len(jax.devices("cpu"))
    if present < count:
        message = f"this plan needs {count} CPU devices and JAX started with {present}; set JAX_NUM_CPU_DEVICES={count}"
        raise TargetError(message)


def _compile(lowered: Any, options: dict[str, Any]) -> tuple[Any, Memory]:
    """Compiles past the persistent cache, which would leave no dump. Not fitting is an answer, not an error."""
    try:
        with without_cache():
            executable = lowered.compile(options)
    except jax.errors.JaxRuntimeError as failure:
        used = _USED.search(str(failure))
        if "RESOURCE_EXHAUSTED" not in str(failure) or used is None:
            message = f"the compiler refused the program: {str(failure)[:2000]}"
            raise CompileError(message) from failure
        number, unit = [part for part in used.groups() if part]
        return None, Memory(temporaries=int(float(number) * _UNITS[unit]), exceeded=True)
    stated = executable.memory_analysis()
    if stated is None:
        return executable, Memory()
    return executable, Memory(
        stated.argument_size_in_bytes,
        stated.output_size_in_bytes,
        stated.alias_size_in_bytes,
        stated.temp_size_in_bytes,
        stated.generated_code_size_in_bytes,
    )


def _there(prepared: Prepared) -> Prepared:
    """Returns the workload on the target itself, which this machine only traces, split as it is here."""
    env, mesh = environment(prepared.composition, "abstract"), prepared.environment.mesh
    if mesh is not None:
        # Not `mesh.abstract_mesh`, which remembers that its devices are processors.
        kinds = (AxisType.Auto,) * len(mesh.shape)
        env = dataclasses.replace(
            env, mesh=AbstractMesh(tuple(mesh.shape.values()), tuple(mesh.shape), axis_types=kinds)
        )
    return prepared.on(env)


def _program(prepared: Prepared, name: str) -> Program:
    """Returns the workload's program of that name, or the decoding step of its model; raises UsageError."""
    return decode_program(prepared) if name == DECODE else prepared.program(name)


@contextlib.contextmanager
def _folder(dump: Path | None) -> Iterator[Path]:
    if dump is not None:
        dump.mkdir(parents=True, exist_ok=True)
        yield dump
        return
    with tempfile.TemporaryDirectory(prefix="kanawa-plan-") as folder:
        yield Path(folder)
