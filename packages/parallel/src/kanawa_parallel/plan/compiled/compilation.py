"""Compiles one program for a target that isn't here, reads all that the compiler reports about it, and saves it."""

import contextlib
import dataclasses
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh
from kanawa.composition.compile_cache import cache_in, without_cache
from kanawa.composition.environment import environment
from kanawa.composition.experiment import Composition
from kanawa.composition.prepare import Prepared, prepare
from kanawa.composition.target import Target
from kanawa.contracts import Environment, Program
from kanawa.errors import KanawaError, TargetError, UsageError
from kanawa.plugins import host
from kanawa.status import stage

from kanawa_parallel.plan.programs.decode import DECODE, decode_program

#: Ends of the names of the dump's file with the final program, best first.
_FINAL = (".after_codegen.txt", "after_optimizations.txt")
#: What compilers say of a program that needs more memory than there is: the bytes, in two forms.
_USED = re.compile(r"(?:[Uu]sed ([\d.]+)([KMGT])i?B? of|temporaries \(([\d.]+)([KMGT])\) exceeds)")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class CompileError(KanawaError):
    """The compiler refused the program for another reason than memory."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes a device holds, as the compiler states them; `exceeded` if it gave up because they don't fit."""

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
    executable: Any = None

    @property
    def target(self) -> Target:
        """The target that the program was compiled for."""
        return self.prepared.composition.required_target()

    @property
    def mesh(self) -> dict[str, int]:
        """The sizes of the mesh's axes; empty without a mesh."""
        mesh = self.prepared.environment.mesh
        return {} if mesh is None else dict(mesh.shape)


def compiler_devices(target: Target) -> Sequence[jax.Device] | None:
    """Returns the target's compile-only devices; None where no public compiler is for it.

    Raises TargetError where the compiler isn't installed.
    """
    offered = [devices for _, devices in host().collect("kanawa_topology", target=target) if devices]
    return offered[0] if offered else None


def compile_program(composition: Composition, name: str, dump: Path | None = None) -> Compilation:
    """Returns the named program compiled for the composition's target; its dump stays in `dump` if there is one.

    Raises TargetError where the target has no compiler, and CompileError with the compiler's words if it refuses.
    """
    target = composition.required_target()
    devices = compiler_devices(target)
    if devices is None:
        message = f"no public compiler is for {target.device.name}; estimate the plan with --quick"
        raise TargetError(message)
    with stage("tracing and lowering"):
        prepared = prepare(composition, where=_on_devices(environment(composition, devices), devices))
        program = decode_program(prepared) if name == DECODE else prepared.program(name)
        lowered = program.lower()
    mesh = prepared.environment.mesh
    with _folder(dump) as folder:
        options = dict(prepared.environment.compiler_options)
        options |= {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True}
        begin = time.perf_counter()
        with stage("compiling, a minute or several for a pod"):
            executable, memory = _compile(lowered.lowered, options)
        seconds = time.perf_counter() - begin
        with stage("reading the compiler's program"):
            text, assignment, ranges = read_dump(folder)
    in_order = None if mesh is None else tuple(mesh.devices.flat)
    return Compilation(
        program, prepared, lowered.kernels, memory, text, assignment, ranges, in_order, seconds, executable
    )


def save(compilation: Compilation | None, folder: Path) -> None:
    """Compiles once more, without the dump's options, into JAX's compilation cache in `folder`.

    A run whose JAX_COMPILATION_CACHE_DIR points there waits for no compiler.
    """
    if compilation is None or compilation.executable is None:
        message = "--save: there is nothing to save; the program doesn't fit, or its target has no public compiler"
        raise UsageError(message)
    folder.mkdir(parents=True, exist_ok=True)
    with cache_in(str(folder.resolve())):
        compilation.program.lower().compile()


def _on_devices(env: Environment, devices: Sequence[jax.Device]) -> Environment:
    """Returns the environment with a mesh, of one device if it has none and `devices` aren't this process's own.

    Without any sharding JAX would compile for this process's own device, whose compiler knows none of the options.
    """
    if env.mesh is not None or devices[0] == jax.devices()[0]:
        return env
    alone = Mesh(np.array(list(devices[:1])), ("data",), axis_types=(AxisType.Auto,))
    return dataclasses.replace(env, mesh=alone)


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


@contextlib.contextmanager
def _folder(dump: Path | None) -> Iterator[Path]:
    if dump is not None:
        dump.mkdir(parents=True, exist_ok=True)
        yield dump
        return
    with tempfile.TemporaryDirectory(prefix="kanawa-plan-") as folder:
        yield Path(folder)
