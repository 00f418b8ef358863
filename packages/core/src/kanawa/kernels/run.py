"""Runs one call of an operation: split over the mesh, choose a kernel, record it, compute."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from kanawa.arrays.axes import LogicalAxes
from kanawa.kernels.custom_gradient import call
from kanawa.kernels.operation import Operands, Operation, Problem
from kanawa.kernels.selection import Selection, select
from kanawa.kernels.sharded import Split, call_split, split_operands


def run(
    operation: Operation,
    problem: Problem,
    operands: Operands,
    axes: Mapping[str, LogicalAxes] | None = None,
) -> Any:
    """Returns the operation's output by the best kernel installed.

    `problem` and `operands` are global; kernels are asked about one shard's part of them. `axes`
    replaces some of the operation's operand axes for this call. Raises KernelError as `select`
    does.
    """
    # What a kernel supports depends on what a shard holds, so splitting comes before choosing.
    split = split_operands(operation, {**operation.operand_axes, **(axes or {})}, operands)
    local, selection = choose(operation, problem, split, operands)
    kernel = selection.kernel
    if kernel.local and split.axes:
        return call_split(operation, split, lambda shard: call(kernel, local, shard), operands)
    return call(kernel, problem, operands)


def choose(operation: Operation, problem: Problem, split: Split, operands: Operands) -> tuple[Problem, Selection]:
    """Returns the local problem and its selection, recorded in the running module."""
    from kanawa.module.context import record_kernel

    local = problem.localize(split.shapes)
    selection = select(operation, local, split.error)
    record_kernel(dataclasses.replace(selection.choice, operand_bytes=_bytes(split, operands)))
    return local, selection


def _bytes(split: Split, operands: Operands) -> int:
    """Returns the bytes of a shard's operands; those without a shape of their own (pytrees) count as nothing."""
    sizes = (
        math.prod(shape) * operands[name].dtype.itemsize
        for name, shape in split.shapes.items()
        if hasattr(operands.get(name), "dtype")
    )
    return sum(sizes)
