"""MatmulProblem: all that is static about one call; the operation, and its reference."""

import dataclasses
import math
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from kanawa.kernels.operation import Operands, Operation, Problem, UniversalKernel
from kanawa.plugins.records import Purpose

XLayout = Literal["rows_first", "inner_first"]
WeightLayout = Literal["inner_first", "outputs_first"]
Precision = Literal["default", "highest"]

#: The compiler splits a `dot_general` over a mesh by itself; other kernels run on one device's operands.
MATMUL = Operation(
    name="matmul",
    operand_axes={"x": (), "weight": ()},
    output_axes=((),),
    manual_axes=(),
    # Every compiler has a good dot of its own.
    expects_fused=False,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatmulProblem(Problem):
    """`x` of `rows` x `inner` times `weight` of `inner` x `outputs`; the result is [rows, outputs] in `dtype`.

    Attributes:
        x_layout: "rows_first" for x stored as [rows, inner], "inner_first" for [inner, rows].
        weight_layout: "inner_first" for a weight stored as [inner, outputs], "outputs_first" for [outputs, inner].
        sum_dtype: the narrowest dtype that sums may be rounded to before the result is; fp32 for logits.
        precision: "highest" multiplies operands as they are; by default a wider operand may be rounded to the narrower
            one's dtype, or both to what the device multiplies fastest.
        purpose: what the program is for, "train", "prefill" or "decode".
        logits: whether the outputs are a vocabulary's logits, or their gradients.
        row_invariant: see `ExecutionPlan`; kernels that don't know how leave it. Gradients needn't be.
    """

    rows: int
    inner: int
    outputs: int
    x_dtype: str
    weight_dtype: str
    sum_dtype: str
    dtype: str
    x_layout: XLayout = "rows_first"
    weight_layout: WeightLayout = "inner_first"
    precision: Precision = "default"
    purpose: Purpose = "train"
    logits: bool = False
    row_invariant: bool = False

    @property
    def matmul_flops(self) -> float:
        """Two FLOPs for each pair of numbers that is multiplied."""
        return 2.0 * self.rows * self.inner * self.outputs

    @property
    def x_shape(self) -> tuple[int, int]:
        """The shape of x as it is stored."""
        return (self.rows, self.inner) if self.x_layout == "rows_first" else (self.inner, self.rows)

    @property
    def weight_shape(self) -> tuple[int, int]:
        """The shape of the weight as it is stored."""
        return (self.inner, self.outputs) if self.weight_layout == "inner_first" else (self.outputs, self.inner)

    @property
    def out_shape(self) -> tuple[int, int]:
        """The shape of the result."""
        return self.rows, self.outputs

    @property
    def contraction(self) -> tuple[tuple[int], tuple[int]]:
        """The contracted dimension of x and of the weight, as they are stored."""
        return (1 if self.x_layout == "rows_first" else 0,), (0 if self.weight_layout == "inner_first" else 1,)

    @property
    def operand_bytes(self) -> int:
        """The bytes of both operands."""
        sizes = ((self.x_shape, self.x_dtype), (self.weight_shape, self.weight_dtype))
        return sum(math.prod(shape) * jnp.dtype(dtype).itemsize for shape, dtype in sizes)

    def describe(self) -> str:
        """Returns one line, such as "bfloat16[4096,512] x bfloat16[512,1536], train"."""
        left = f"{self.x_dtype}[{self.x_shape[0]},{self.x_shape[1]}]" + ".T" * (self.x_layout != "rows_first")
        right = f"{self.weight_dtype}[{self.weight_shape[0]},{self.weight_shape[1]}]"
        right += ".T" * (self.weight_layout != "inner_first")
        result = f" -> {self.dtype}" * (self.dtype != self.x_dtype)
        sums = f", sums in {self.sum_dtype}" * (self.sum_dtype != self.dtype)
        precision = f", {self.precision} precision" * (self.precision != "default")
        flags = " logits" * self.logits + " row-invariant" * self.row_invariant
        return f"{left} x {right}{result}{sums}{precision}, {self.purpose}{flags}"

    def result(self, operands: Operands) -> jax.ShapeDtypeStruct:
        """Returns [rows, outputs] in the result's dtype."""
        del operands
        return jax.ShapeDtypeStruct((self.rows, self.outputs), jnp.dtype(self.dtype))

    def x_gradient(self) -> "MatmulProblem":
        """Returns the matmul whose result is the gradient of x, in x's layout; see `gradient_operands`."""
        if self.x_layout == "rows_first":
            # dx [rows, inner] = dy [rows, outputs] @ weight^T
            flipped: WeightLayout = "outputs_first" if self.weight_layout == "inner_first" else "inner_first"
            return self._gradient(self.rows, self.outputs, self.inner, "rows_first", flipped, from_left=True)
        # dx [inner, rows] = weight @ dy^T
        layout: XLayout = "rows_first" if self.weight_layout == "inner_first" else "inner_first"
        return self._gradient(self.inner, self.outputs, self.rows, layout, "outputs_first", from_left=False)

    def weight_gradient(self) -> "MatmulProblem":
        """Returns the matmul whose result is the gradient of the weight, in its layout; see `gradient_operands`."""
        if self.weight_layout == "inner_first":
            # dweight [inner, outputs] = x^T @ dy
            flipped: XLayout = "inner_first" if self.x_layout == "rows_first" else "rows_first"
            return self._gradient(
                self.inner, self.rows, self.outputs, flipped, "inner_first", from_left=False, of_weight=True
            )
        # dweight [outputs, inner] = dy^T @ x
        layout: WeightLayout = "inner_first" if self.x_layout == "rows_first" else "outputs_first"
        return self._gradient(
            self.outputs, self.rows, self.inner, "inner_first", layout, from_left=True, of_weight=True
        )

    def _gradient(
        self, rows: int, inner: int, outputs: int, x_layout: XLayout, weight_layout: WeightLayout, *,
        from_left: bool, of_weight: bool = False,
    ) -> "MatmulProblem":  # fmt: skip
        """Returns the problem of a gradient; `from_left`: the cotangent is its x, else its weight."""
        other = self.x_dtype if of_weight else self.weight_dtype
        return dataclasses.replace(
            self,
            rows=rows,
            inner=inner,
            outputs=outputs,
            x_layout=x_layout,
            weight_layout=weight_layout,
            x_dtype=self.dtype if from_left else other,
            weight_dtype=other if from_left else self.dtype,
            dtype=self.weight_dtype if of_weight else self.x_dtype,
            row_invariant=False,
        )


class ReferenceMatmul(UniversalKernel):
    """matmul.any.xla: one `dot_general`, which every platform compiles to its own matmul and splits over a mesh."""

    name: ClassVar[str] = "matmul.any.xla"
    operation: ClassVar[str] = "matmul"

    def forward(self, problem: MatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [rows, outputs], None)."""
        out = jax.lax.dot_general(
            operands["x"],
            operands["weight"],
            (problem.contraction, ((), ())),
            precision=dot_precision(problem.precision),
            preferred_element_type=problem.sum_dtype,
        )
        return out.astype(problem.dtype), None


def dot_precision(name: str) -> Any:
    """Returns what `dot_general` takes for a problem's `precision`."""
    return jax.lax.Precision.HIGHEST if name == "highest" else None
