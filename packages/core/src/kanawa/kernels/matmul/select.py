"""Chooses a matmul's kernel; fast, for a model makes hundreds of calls while it is traced."""

import dataclasses
import functools

from kanawa.arrays.plan import ExecutionPlan, current_plan
from kanawa.kernels.choice import KernelChoice
from kanawa.kernels.matmul.problem import MATMUL, MatmulProblem, ReferenceMatmul
from kanawa.kernels.platform import current_platform, mesh_error
from kanawa.kernels.selection import Selection, has_alternatives, select
from kanawa.plugins import PluginHost, host

Key = tuple[PluginHost, ExecutionPlan, tuple[str, str | None], str]


def _key() -> Key:
    return host(), current_plan(), current_platform(), mesh_error()


@functools.lru_cache(maxsize=4096)
def _selections(problem: MatmulProblem, gradients: bool, key: Key) -> tuple[Selection, ...]:
    """Returns the kernel for a problem, and with `gradients` those for its gradients."""
    calls = (problem, problem.x_gradient(), problem.weight_gradient()) if gradients else (problem,)
    return tuple(select(MATMUL, each, key[-1]) for each in calls)


def select_matmul(problem: MatmulProblem) -> Selection:
    """Returns the kernel for a problem, as `select` does."""
    return _selections(problem, False, _key())[0]


def recorded_choices(problem: MatmulProblem, *, gradients: bool) -> tuple[KernelChoice, ...]:
    """Returns a call's choice for the manifest, and with `gradients` the choices of its gradients."""
    choices = (selection.choice for selection in _selections(problem, gradients, _key()))
    return tuple(dataclasses.replace(each, operand_bytes=each.local_problem.operand_bytes) for each in choices)


def by_reference_alone(problem: MatmulProblem) -> bool:
    """Returns whether the reference is chosen for a problem, and in training for its gradients too."""
    selections = _selections(problem, problem.purpose == "train", _key())
    return all(selection.kernel.name == ReferenceMatmul.name for selection in selections)


def only_reference() -> bool:
    """Returns whether no installed kernel but the reference can be chosen here, or the plan pins the reference."""
    return _only_reference(_key())


@functools.lru_cache(maxsize=256)
def _only_reference(key: Key) -> bool:
    reference = ReferenceMatmul.name
    pins = {kernel for operation, kernel in key[1].kernels.pins if operation == MATMUL.name}
    return pins == {reference} or (not pins and not has_alternatives(MATMUL, reference, key[-1]))
