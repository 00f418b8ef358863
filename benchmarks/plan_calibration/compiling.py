"""Compiles a published step's program once and keeps what its time comes from, so that fitting compiles nothing."""

import dataclasses
import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from kanawa_parallel.plan.analyse import Asked, installed
from kanawa_parallel.plan.compilation import compile_program
from kanawa_parallel.plan.cost.kernel_cost import KernelCosts
from kanawa_parallel.plan.cost.links import Links
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
    note: str


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


def _compile(row: Row) -> Compiled:
    composition = composed(row)
    result = compile_program(composition, "train_step")
    target: Any = composition.target
    devices = result.devices if result.compiled else None
    links = Links.of(target.device, devices, target.jax_devices)
    asked = Asked.of(composition, result.prepared, result.program)
    return Compiled(
        row=row,
        text=result.text,
        mesh=asked.mesh,
        domains=links.domains,
        places=links.places,
        kernels=KernelCosts.of(result.kernels),
        model_flops=asked.flops,
        memory_bytes=result.memory.total,
        temporaries=result.memory.temporaries,
        exceeded=result.memory.exceeded,
        seconds=result.seconds,
        versions=installed(),
        note=result.note,
    )
