"""The two halves of the kernel contract: what an operation is, what a kernel must offer."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax.numpy as jnp

from kanawa.arrays.axes import LogicalAxes
from kanawa.kernels.verdict import SUPPORTED, Verdict, refuse

if TYPE_CHECKING:
    from kanawa.plugins import DeviceSpec

#: Operand name to array (or a pytree of arrays); an absent operand has no key.
Operands = Mapping[str, Any]

#: Sizes and the like that a kernel can be run with, by name: (("block_q", 128), …). Hashable, for it decides a program.
Tuning = tuple[tuple[str, int], ...]

#: In `Operation.output_axes`: every shard holds a part of the sum, so that the wrapper adds them up.
SUMMED = "summed"


class Problem(abc.ABC):
    """All that is static about one call of an operation; subclasses are frozen, hashable dataclasses."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns one line of text for manifests and error messages."""

    @abc.abstractmethod
    def result(self, operands: Operands) -> Any:
        """Returns the output's shapes and dtypes, as ShapeDtypeStructs; what a kernel returns is held to them."""

    def localize(self, operand_shapes: Mapping[str, tuple[int, ...]]) -> Self:
        """Returns the problem of one shard, whose operands have these shapes; itself where nothing is ever split."""
        del operand_shapes
        return self

    @property
    def matmul_flops(self) -> float:
        """FLOPs of one of the matmuls that it is made of; 0 where it is made of none."""
        return 0.0

    def visited_share(self, grid: tuple[int, ...]) -> float:
        """Returns the share of a grid's steps whose tile holds anything to compute; all of it unless overridden."""
        del grid
        return 1.0

    @property
    def extras(self) -> frozenset[str]:
        """Features that kernels written before them don't know: each kernel says which it takes."""
        return frozenset()


@dataclass(frozen=True)
class Operation:
    """An operation: its name, and how its operands and outputs may be split over a mesh.

    Attributes:
        operand_axes: logical axes of every operand, absent ones included.
        output_axes: logical axes of each output, in order (one entry: the output is that array), or
            SUMMED.
        manual_axes: logical axes that a local kernel is split over, the rest being left to the
            compiler; None for the whole mesh; empty if only the caller can split, so that a mesh
            rules local kernels out.
        dominant: the logical axis whose mesh axes no other axis may use, in any operand: heads before
            length in attention, so that queries and their positions are split alike. Over its
            mesh axes SUMMED outputs are whole already.
        expects_fused: whether a kernel with `fused=False` counts as a fallback on an accelerator (`require_fused`),
            unless its DeviceSpec names the operation in `unfused`.
    """

    name: str
    # Left out of hash and equality: dictionaries don't hash, and an operation is known by its name.
    operand_axes: Mapping[str, LogicalAxes] = field(hash=False, compare=False)
    output_axes: tuple[LogicalAxes | str, ...] = field(hash=False, compare=False)
    manual_axes: tuple[str, ...] | None = None
    dominant: str | None = None
    expects_fused: bool = True


class Kernel(abc.ABC):
    """One implementation of an operation, made without arguments and without state.

    A kernel sees operands as `Operation.operand_axes` orders them, and never a mesh, a context or a
    config. `forward` and `backward` must be pure. Subclasses are final; they set the class
    variables.

    Attributes:
        name: the catalog name, `<operation>.<platform>.<name>`.
        operation: by default the name's first part.
        platforms: those that the kernel runs on, where its name says "any" and it doesn't run on all of them.
        priority: the highest wins among kernels that match the platform equally well.
        fused: True if it never materialises what the operation is known for (attention scores, …).
        local: True if it can't be partitioned by the compiler; core then wraps it in `shard_map`.
        autodiff: True if JAX should differentiate through `apply`; `backward` is then not used.
        compiled_calls: what its calls are named in a compiled program, as (pattern, matmuls of the problem's size that
            such a call does), the first that matches counting. By these a plan knows what a fused kernel costs that
            states no cost of its own; an operation says what one matmul is (`Problem.matmul_flops`).
        takes: the extras of a problem (`Problem.extras`) that it knows. It isn't asked about a problem with others.
        in_process: True if its calls run only in the process that traced them, as calls of functions by their address
            do. It is then refused for devices that aren't this process's.
        tuning: what it is to run with where that differs from its own choice; read it with `setting`.
    """

    name: ClassVar[str]
    operation: ClassVar[str]
    platforms: ClassVar[tuple[str, ...]] = ()
    priority: ClassVar[int] = 0
    fused: ClassVar[bool] = False
    local: ClassVar[bool] = False
    autodiff: ClassVar[bool] = False
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = ()
    takes: ClassVar[frozenset[str]] = frozenset()
    in_process: ClassVar[bool] = False
    tuning: Tuning = ()

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Sets the operation that the name says, where the class sets none."""
        super().__init_subclass__(**arguments)
        if not hasattr(cls, "operation") and hasattr(cls, "name"):
            cls.operation = cls.name.partition(".")[0]

    @abc.abstractmethod
    def supports(self, problem: Any, device: "DeviceSpec | None") -> Verdict:
        """Returns whether it can do the local problem; `device` is None where it isn't known.

        Must be quick, and must not touch a device. Reasons name the value found and the limit.
        """

    def verdict(self, problem: Any, device: "DeviceSpec | None") -> Verdict:
        """Returns what `supports` says, or a refusal of a problem that has something the kernel has never heard of."""
        unknown = sorted(problem.extras - self.takes)
        # Ignored, an operand that a kernel doesn't look for would silently change nothing.
        return refuse(f"it doesn't take {', '.join(unknown)}") if unknown else self.supports(problem, device)

    @abc.abstractmethod
    def forward(self, problem: Any, operands: Operands) -> tuple[Any, Any]:
        """Returns (out, residuals): what `backward` needs beside operands and out."""

    def tunings(self, problem: Any, device: "DeviceSpec | None") -> tuple[Tuning, ...]:
        """Returns what `kanawa kernels --bench` tries for a problem it supports, beside the kernel's own choice."""
        del problem, device
        return ()

    def preferred(self, problem: Any, device: "DeviceSpec | None") -> Any:
        """Returns the problem it would rather compute, where the caller is free to store an operand in another layout.

        By default this one.
        """
        del device
        return problem

    def computed(self, problem: Any, device: "DeviceSpec | None") -> float:
        """Returns how many times the problem's matmuls it computes, as where tiles are filled in part; by default 1.

        Plans multiply by it the cycles that were recorded of a problem whose tiles are full.
        """
        del problem, device
        return 1.0

    def setting(self, name: str, default: int) -> int:
        """Returns what the tuning says of `name`, else the kernel's own choice."""
        return dict(self.tuning).get(name, default)

    def apply(self, problem: Any, operands: Operands) -> Any:
        """Returns the output alone, for calls that need no residuals."""
        return self.forward(problem, operands)[0]

    def backward(self, problem: Any, operands: Operands, out: Any, residuals: Any, cotangents: Any) -> dict[str, Any]:
        """Returns the cotangent of each floating-point operand; a missing one means zero.

        Needed unless `autodiff`. Cotangents have the structure of `out`.
        """
        message = f"{self.name} has no backward: set autodiff = True or define backward"
        raise TypeError(message)


class UniversalKernel(Kernel):
    """A kernel that supports every problem of its operation."""

    def supports(self, problem: Any, device: "DeviceSpec | None") -> Verdict:
        """Returns support, always."""
        del problem, device
        return SUPPORTED


def wide(*dtypes: Any) -> jnp.dtype:
    """Returns the dtype of sums: fp32, or fp64 where one of the dtypes is fp64.

    Only a comparison asks for fp64: a reference is then the exact value that kernels are measured against.
    """
    return jnp.dtype("float64" if any(jnp.dtype(dtype) == jnp.dtype("float64") for dtype in dtypes) else "float32")
