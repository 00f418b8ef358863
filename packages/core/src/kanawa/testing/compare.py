"""Compares a kernel with the reference in fp64 over a sweep: outputs and gradients, or the refusal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from kanawa.errors import KernelError, did_you_mean
from kanawa.kernels.custom_gradient import call
from kanawa.kernels.operation import Kernel, Operands
from kanawa.plugins import host

if TYPE_CHECKING:
    from kanawa.plugins import DeviceSpec

#: Largest error of an output or a gradient over the largest magnitude in the reference's, by the problem's dtype.
#: Over the largest and not element by element: a sum near zero has no relative precision to keep.
TOLERANCES: Mapping[str, float] = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}

#: Magnitudes that count as zero: operands are about 1, so an array below it is rounding in the reference too.
_NOTHING = 1e-3

_KIND = "kernel_examples"


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A problem that a kernel doesn't support, and why."""

    problem: Any
    reason: str


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Generated problems.

    Attributes:
        problems: accepted ones, all different, those that cover most features and pairs of features first.
        refusals: what was refused on the way.
    """

    problems: tuple[Any, ...]
    refusals: tuple[Refusal, ...]


class ProblemSpace(Protocol):
    """The features of an operation's problems, from which problems that a kernel supports are generated."""

    @property
    def features(self) -> Mapping[str, tuple[Any, ...]]:
        """The values of each feature, the plainest first."""
        ...

    def narrowed(self, narrow: Mapping[str, tuple[Any, ...]]) -> ProblemSpace:
        """Returns the space with some features' values replaced; raises KernelError for an unknown feature."""
        ...

    def generate(self, kernel: Kernel, count: int, *, device: DeviceSpec | None = None, seed: int = 0) -> Sweep:
        """Returns up to `count` problems that the kernel accepts; the same ones for the same seed."""
        ...


@dataclasses.dataclass(frozen=True)
class Examples:
    """What comparing an operation's kernels takes.

    Attributes:
        reference: the kernel that is right.
        problems: a sweep that any kernel may be asked.
        operands: makes random operands for a problem, as NumPy arrays (compiling a generator takes
            seconds).
        differentiable: whether the problem is ever differentiated.
        specified: returns the output with zeros where the contract leaves it open.
        space: the features that problems are generated from; None where only `problems` are asked.
        typical: a problem of the size that one chip has in training; None where nothing is typical.
        terms: returns, from a problem, its operands and the outputs' cotangents, the magnitude of the terms that an
            output ("out[i]") or a gradient ("d" + operand) is the difference of, where it may be far below them:
            errors are measured against that.
    """

    reference: Kernel
    problems: tuple[Any, ...]
    operands: Callable[[Any, np.random.Generator], dict[str, Any]]
    differentiable: Callable[[Any], bool] = lambda problem: True
    specified: Callable[[Any, Operands, Any], Any] = lambda problem, operands, out: out
    space: ProblemSpace | None = None
    typical: Any = None
    terms: Callable[[Any, Operands, list[np.ndarray]], Mapping[str, float]] = lambda problem, operands, cotangents: {}


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How a kernel compared on one problem.

    Attributes:
        refused: the reason, if it doesn't support the problem; empty if it does.
        errors: relative errors by name: "out[i]", and "d" + operand for gradients.
        tolerance: what each error may be.
        failed: what it raised on a problem that it had accepted; empty if it gave a result.
    """

    problem: Any
    refused: str
    errors: Mapping[str, float]
    tolerance: float
    failed: str = ""

    @property
    def ok(self) -> bool:
        """True where it was refused, or every error is a number within the tolerance."""
        return not self.failed and all(error <= self.tolerance for error in self.errors.values())

    def describe(self) -> str:
        """Returns one line with the problem and its errors or refusal."""
        what = self.problem.describe()
        if self.refused:
            return f"{what}: refused: {self.refused}"
        if self.failed:
            return f"{what}: accepted, then FAILED: {self.failed}"
        errors = ", ".join(f"{name} {error:.2g}" for name, error in self.errors.items())
        return f"{what}: {'agrees' if self.ok else 'DISAGREES'} within {self.tolerance:g}: {errors}"


def examples_for(operation: str) -> Examples:
    """Returns the installed examples for an operation; raises KernelError where there are none."""
    names = operations_with_examples()
    if operation not in names:
        missing = "" if names else '; run: pip install "kanawa[kernel-tools]"'
        message = (
            f"there are no examples for operation {operation!r}{did_you_mean(operation, names)}{missing}; return "
            f"Examples of your own from the conformance class's `examples`, or pass them"
        )
        raise KernelError(message)
    examples: Examples = host().load(_KIND, operation)
    return examples


def operations_with_examples() -> tuple[str, ...]:
    """Returns the names of the operations that `examples_for` knows, sorted."""
    return tuple(state.name for state in host().components(_KIND) if state.state.usable)


def compare_with_reference(
    kernel: Kernel,
    problems: Iterable[Any] | None = None,
    *,
    examples: Examples | None = None,
    device: DeviceSpec | None = None,
    tolerances: Mapping[str, float] | None = None,
    seed: int = 0,
) -> list[Agreement]:
    """Returns an Agreement for each problem, of the operation's sweep by default.

    The reference runs in fp64 on the same, already rounded operands and cotangents.
    """
    examples = examples or examples_for(kernel.operation)
    limits = {**TOLERANCES, **(tolerances or {})}
    agreements = []
    for problem in examples.problems if problems is None else problems:
        verdict = kernel.verdict(problem, device)
        errors: Mapping[str, float] = {}
        failed = ""
        if verdict:
            try:
                errors = compare_one(kernel, problem, examples, seed)
            # A kernel may raise anything, and the sweep is to say on which problem it did.
            except Exception as error:  # noqa: BLE001
                failed = f"{type(error).__name__}: {error}"
        refused = "" if verdict else verdict.reason
        agreements.append(Agreement(problem, refused, errors, _tolerance(problem, limits), failed))
    return agreements


def _tolerance(problem: Any, limits: Mapping[str, float]) -> float:
    """Returns the limit of the narrowest dtype that the problem names: what is rounded to it can't be nearer."""
    values = (getattr(problem, f.name) for f in dataclasses.fields(problem))
    return max(limits[value] for value in values if isinstance(value, str) and value in limits)


def compare_one(kernel: Kernel, problem: Any, examples: Examples, seed: int) -> dict[str, float]:
    """Returns the relative errors of a kernel's outputs and gradients on one supported problem."""
    replaced = {f.name: "float64" for f in dataclasses.fields(problem) if f.name.endswith("dtype")}
    truth = dataclasses.replace(problem, **replaced)
    gradients = examples.differentiable(problem)

    rng = np.random.default_rng(seed)
    operands = {n: np.asarray(x) for n, x in examples.operands(problem, rng).items()}
    outs = jax.eval_shape(lambda operands: _outputs(kernel, problem, operands, examples), operands)
    # Rounded to the output's dtype, as a kernel gets them: the reference is to be measured on the same ones.
    cotangents = [rng.standard_normal(out.shape).astype(out.dtype) for out in outs]

    ours = _evaluate(kernel, problem, operands, examples, cotangents, gradients)
    with jax.enable_x64(True):
        exact = {name: _to_fp64(x) for name, x in operands.items()}
        rounded = [x.astype(np.float64) for x in cotangents]
        right = _evaluate(examples.reference, truth, exact, examples, rounded, gradients)
        terms = examples.terms(truth, exact, rounded) if gradients else {}
    return {name: _relative_error(ours[name], right[name], terms.get(name, _NOTHING)) for name in right}


def _evaluate(
    kernel: Kernel,
    problem: Any,
    operands: Operands,
    examples: Examples,
    cotangents: list[np.ndarray],
    gradients: bool,
) -> dict[str, np.ndarray]:
    """Returns outputs, and gradients of their product with the cotangents, by name, in fp64."""
    floats = {n: x for n, x in operands.items() if jnp.issubdtype(x.dtype, jnp.inexact)}
    rest = {n: x for n, x in operands.items() if n not in floats}

    # One compiled program: op by op, compiling would take most of a sweep's time.
    @jax.jit
    def both(floats: Operands, rest: Operands, cotangents: list[jax.Array]) -> dict[str, jax.Array]:
        def outputs(floats: Operands) -> list[jax.Array]:
            return _outputs(kernel, problem, {**floats, **rest}, examples)

        # Pulled back from random cotangents, so that errors don't cancel as they may in a plain sum (softmax: 1).
        outs, pull = jax.vjp(outputs, floats) if gradients else (outputs(floats), None)
        grads = {} if pull is None else pull([c.astype(out.dtype) for c, out in zip(cotangents, outs, strict=True)])[0]
        named = {f"out[{i}]": x for i, x in enumerate(outs)}
        return {**named, **{f"d{name}": grad for name, grad in grads.items()}}

    return {name: np.asarray(x).astype(np.float64) for name, x in both(floats, rest, cotangents).items()}


def _outputs(kernel: Kernel, problem: Any, operands: Operands, examples: Examples) -> list[jax.Array]:
    out = call(kernel, problem, operands)
    return jax.tree.leaves(examples.specified(problem, operands, out))


def _to_fp64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def _relative_error(ours: np.ndarray, right: np.ndarray, floor: float) -> float:
    """Returns the largest difference over the largest magnitude, or `floor` if larger; NaN if there is one."""
    if ours.shape != right.shape:
        return float("inf")
    if not right.size:
        return 0.0
    return float(np.max(np.abs(ours - right)) / max(np.max(np.abs(right)), floor, _NOTHING))
