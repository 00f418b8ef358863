"""Chooses a matmul's kernel; fast, for a model makes hundreds of calls while it is traced."""

import dataclasses
import functools

from kanawa.arrays.plan import ExecutionPlan, current_plan
from kanawa.kernels.choice import KernelChoice
from kanawa.kernels.matmul.problem import MATMUL, MatmulProblem
from kanawa.kernels.matmul.reference import ReferenceMatmul
from kanawa.kernels.platform import current_platform, mesh_error
from kanawa.kernels.selection import Selection, has_alternatives, select
from kanawa.plugins import PluginHost, host

Key = tuple[PluginHost, ExecutionPlan, tuple[str, str | None], str]


def select_matmul(problem: MatmulProblem) -> Selection:
    """Returns the kernel for a problem, as `select` does."""
    return _select(problem, _key())


def recorded_choices(problem: MatmulProblem, *, gradients: bool) -> tuple[KernelChoice, ...]:
    """Returns a call's choice for the manifest, and with `gradients` the choices of its gradients."""
    return _recorded(problem, gradients, _key())


def only_reference() -> bool:
    """Returns whether no installed kernel but the reference can be chosen here, or the plan pins the reference."""
    return _only_reference(_key())


def _key() -> Key:
    return host(), current_plan(), current_platform(), mesh_error()


@functools.lru_cache(maxsize=4096)
def _select(problem: MatmulProblem, key: Key) -> Selection:
    return select(MATMUL, problem, key[-1])


@functools.lru_cache(maxsize=4096)
def _recorded(problem: MatmulProblem, gradients: bool, key: Key) -> tuple[KernelChoice, ...]:
    calls = (problem, problem.x_gradient(), problem.weight_gradient()) if gradients else (problem,)
    return tuple(dataclasses.replace(_select(each, key).choice, operand_bytes=each.operand_bytes) for each in calls)


def by_reference_alone(problem: MatmulProblem) -> bool:
    """Returns whether the reference is chosen for a problem, and in training for its gradients too."""
    return _by_reference_alone(problem, _key())


@functools.lru_cache(maxsize=4096)
def _by_reference_alone(problem: MatmulProblem, key: Key) -> bool:
    calls = [problem]
    if problem.purpose == "train":
        calls += [problem.x_gradient(), problem.weight_gradient()]
    return all(_select(each, key).kernel.name == ReferenceMatmul.name for each in calls)


@functools.lru_cache(maxsize=256)
def _only_reference(key: Key) -> bool:
    reference = ReferenceMatmul.name
    pins = {kernel for operation, kernel in key[1].kernels.pins if operation == MATMUL.name}
    return pins == {reference} or (not pins and not has_alternatives(MATMUL, reference, key[-1]))
