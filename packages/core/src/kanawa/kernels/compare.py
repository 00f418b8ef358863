"""Compares a kernel with the reference over a sweep: outputs and gradients, or the refusal."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from kanawa.errors import KernelError, did_you_mean
from kanawa.kernels.custom_gradient import call
from kanawa.kernels.operation import Kernel, Operands

if TYPE_CHECKING:
    from kanawa.plugins import DeviceSpec

#: Largest error relative to the reference's largest magnitude, by the operands' dtype.
TOLERANCES: Mapping[str, float] = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}

_EXAMPLES = {
    "attention": "kanawa.kernels.attention.examples",
    "diagonal_recurrence": "kanawa.kernels.diagonal_recurrence.examples",
    "grouped_matmul": "kanawa.kernels.grouped_matmul.examples",
    "linear_recurrence": "kanawa.kernels.linear_recurrence.examples",
    "quantized_matmul": "kanawa.kernels.quantized_matmul.examples",
    "softmax_cross_entropy": "kanawa.kernels.softmax_cross_entropy.examples",
}


@dataclasses.dataclass(frozen=True)
class Examples:
    """What comparing an operation's kernels takes.

    Attributes:
        reference: the kernel that is right.
        problems: a sweep that any kernel may be asked.
        operands: makes random operands for a problem, as NumPy arrays (compiling a generator takes
            seconds).
        differentiable: whether the problem is ever differentiated.
        specified: gives the output with zeros where the contract leaves it open.
    """

    reference: Kernel
    problems: tuple[Any, ...]
    operands: Callable[[Any, np.random.Generator], dict[str, Any]]
    differentiable: Callable[[Any], bool] = lambda problem: True
    specified: Callable[[Any, Operands, Any], Any] = lambda problem, operands, out: out


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How a kernel compared on one problem.

    Attributes:
        refused: the reason, if it doesn't support the problem; empty if it does.
        errors: relative errors by name: "out[i]", and "d" + operand for gradients.
        tolerance: what each error may be.
    """

    problem: Any
    refused: str
    errors: Mapping[str, float]
    tolerance: float

    @property
    def ok(self) -> bool:
        """True where it was refused, or every error is a number within the tolerance."""
        return all(error <= self.tolerance for error in self.errors.values())

    def describe(self) -> str:
        """Returns one line with the problem and its errors or refusal."""
        what = self.problem.describe()
        if self.refused:
            return f"{what}: refused: {self.refused}"
        errors = ", ".join(f"{name} {error:.2g}" for name, error in self.errors.items())
        return f"{what}: {'agrees' if self.ok else 'DISAGREES'} within {self.tolerance:g}: {errors}"


def examples_for(operation: str) -> Examples:
    """Returns core's examples for one of its operations; raises KernelError for another's."""
    if operation not in _EXAMPLES:
        near = did_you_mean(operation, _EXAMPLES)
        message = (
            f"core has no examples for operation {operation!r}{near}; return Examples of your own from the "
            f"conformance class's `examples`, or pass them"
        )
        raise KernelError(message)
    return import_module(_EXAMPLES[operation]).EXAMPLES


def compare_with_reference(
    kernel: Kernel,
    problems: Iterable[Any] | None = None,
    *,
    examples: Examples | None = None,
    device: "DeviceSpec | None" = None,
    tolerances: Mapping[str, float] | None = None,
    seed: int = 0,
) -> list[Agreement]:
    """Returns an Agreement for each problem, of the operation's sweep by default.

    The reference runs in fp32 on the same, already rounded operands.
    """
    examples = examples or examples_for(kernel.operation)
    limits = {**TOLERANCES, **(tolerances or {})}
    agreements = []
    for problem in examples.problems if problems is None else problems:
        verdict = kernel.supports(problem, device)
        limit = limits[problem.dtype]
        errors = {} if not verdict else compare_one(kernel, problem, examples, seed)
        agreements.append(Agreement(problem, verdict.reason, errors, limit))
    return agreements


def compare_one(kernel: Kernel, problem: Any, examples: Examples, seed: int) -> dict[str, float]:
    """Returns the relative errors of a kernel's outputs and gradients on one supported problem."""
    replaced = {f.name: "float32" for f in dataclasses.fields(problem) if f.name.endswith("dtype")}
    truth = dataclasses.replace(problem, **replaced)
    gradients = examples.differentiable(problem)

    rng = np.random.default_rng(seed)
    operands = {n: jnp.asarray(x) for n, x in examples.operands(problem, rng).items()}
    outs = jax.eval_shape(lambda operands: _outputs(kernel, problem, operands, examples), operands)
    cotangents = [jnp.asarray(rng.standard_normal(out.shape), jnp.float32) for out in outs]

    # One compiled program: op by op, compiling would take most of a sweep's time.
    @jax.jit
    def errors(operands: Operands, cotangents: list[jax.Array]) -> dict[str, jax.Array]:
        exact = {name: _to_fp32(x) for name, x in operands.items()}
        both = [(kernel, problem, operands), (examples.reference, truth, exact)]
        ours, right = (_evaluate(*one, examples, cotangents, gradients) for one in both)
        return {name: _relative_error(ours[name], right[name]) for name in right}

    return {name: float(error) for name, error in errors(operands, cotangents).items()}


def _evaluate(
    kernel: Kernel,
    problem: Any,
    operands: Operands,
    examples: Examples,
    cotangents: list[jax.Array],
    gradients: bool,
) -> dict[str, jax.Array]:
    """Returns outputs, and gradients of their product with the cotangents, by name."""
    floats = {n: x for n, x in operands.items() if jnp.issubdtype(x.dtype, jnp.inexact)}
    rest = {n: x for n, x in operands.items() if n not in floats}

    # A product with random cotangents, so that errors don't cancel as they may in a plain sum (softmax: 1, always).
    def product(floats: Operands) -> tuple[jax.Array, list[jax.Array]]:
        outs = _outputs(kernel, problem, {**floats, **rest}, examples)
        total = jnp.zeros((), jnp.float32)
        for out, cotangent in zip(outs, cotangents, strict=True):
            total += jnp.sum(cotangent * out.astype(jnp.float32))
        return total, outs

    grads, outs = jax.grad(product, has_aux=True)(floats) if gradients else ({}, product(floats)[1])
    named = {f"out[{i}]": x for i, x in enumerate(outs)}
    return {**named, **{f"d{name}": grad for name, grad in grads.items()}}


def _outputs(kernel: Kernel, problem: Any, operands: Operands, examples: Examples) -> list[jax.Array]:
    out = call(kernel, problem, operands)
    return jax.tree.leaves(examples.specified(problem, operands, out))


def _to_fp32(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def _relative_error(ours: jax.Array, right: jax.Array) -> jax.Array:
    """Returns the largest difference over the largest magnitude; NaN if there is one."""
    # Over the largest magnitude, not element by element: values near zero have no relative precision to keep.
    scale = jnp.maximum(jnp.max(jnp.abs(right)), 1e-3)
    difference = jnp.max(jnp.abs(ours.astype(jnp.float32) - right.astype(jnp.float32)))
    return difference / scale
