"""Compiles a published step's program once and keeps what its time comes from, so that fitting compiles nothing."""

import dataclasses
import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from kanawa.api.kernels import chosen_kernels
from kanawa_parallel.plan.compiled.compilation import compile_program
from kanawa_parallel.plan.cost.kernel_cost import KernelCosts, recorded_cycles
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.report.assemble import ModelRequest, installed_versions
from rows import Row, composed


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A row's program, and what of its target timing asks for; plain data, which pickles."""

    row: Row
    text: str
    mesh: dict[str, int]
    domains: np.ndarray
    places: np.ndarray | None
    kernels: KernelCosts
    model_flops: float
    memory_bytes: int
    temporaries: int
    exceeded: bool
    seconds: float
    versions: dict[str, str]


def compiled(row: Row, folder: Path) -> Compiled:
    """Returns the row's program from `folder`, compiling it first if it isn't there."""
    path = folder / f"{row['id']}.pickle.gz"
    if path.exists():
        with gzip.open(path) as file:
            kept: Compiled = pickle.load(file)  # noqa: S301 (this script wrote it)
        # What is published of a step may have been corrected since.
        return dataclasses.replace(kept, row=row)
    made = _compile(row)
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb", compresslevel=3) as file:
        pickle.dump(made, file)
    return made


def kernel_costs(compiled: Compiled) -> KernelCosts:
    """Returns the costs of a compiled row's kernels, with their recorded cycles."""
    composition = composed(compiled.row)
    target: Any = composition.target
    if target.device.clock_hz is None:
        return compiled.kernels
    choices = chosen_kernels(composition, "train_step")
    cycles = recorded_cycles(choices, target.device)
    return KernelCosts.of_choices(choices, {scope: _in_one(calls, compiled.text) for scope, calls in cycles.items()})


def _in_one(calls: tuple[tuple[str, float], ...], text: str) -> tuple[tuple[str, float], ...]:
    """Returns the cycles for a program that was kept from when Splash's backward was one call, which took as long."""
    keys = sum(cycles for name, cycles in calls if "_dkv" in name)
    queries = sum(cycles for name, cycles in calls if "_dq" in name)
    if not queries or "splash_mha_dq" in text:
        return calls
    return tuple((name, keys + queries if "_dkv" in name else cycles) for name, cycles in calls)


def _compile(row: Row) -> Compiled:
    composition = composed(row)
    result = compile_program(composition, "train_step")
    target: Any = composition.target
    links = Links.of_devices(target.device, result.devices, target.jax_devices)
    request = ModelRequest.of_program(result.prepared, result.program)
    return Compiled(
        row=row,
        text=result.text,
        mesh=request.mesh,
        domains=links.domains,
        places=links.places,
        kernels=KernelCosts.of_choices(result.kernels),
        model_flops=request.flops,
        memory_bytes=result.memory.total,
        temporaries=result.memory.temporaries,
        exceeded=result.memory.exceeded,
        seconds=result.seconds,
        versions=installed_versions(target.device),
    )
