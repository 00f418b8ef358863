"""diagonal_recurrence.any.associative: a parallel prefix scan (Blelloch 1990), log2(T) passes instead of T steps."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.diagonal_recurrence import DiagonalRecurrenceProblem
from kanawa.kernels.operation import Operands, UniversalKernel


class AssociativeDiagonalRecurrence(UniversalKernel):
    """Forward, and backward as the same scan from the end; keeps its output alone."""

    name: ClassVar[str] = "diagonal_recurrence.any.associative"
    operation: ClassVar[str] = "diagonal_recurrence"
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True

    def forward(self, problem: DiagonalRecurrenceProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (h fp32 [B, T, C], None)."""
        return _scan(operands["decay"].astype(jnp.float32), operands["x"].astype(jnp.float32)), None

    def backward(
        self,
        problem: DiagonalRecurrenceProblem,
        operands: Operands,
        out: jax.Array,
        residuals: None,
        cotangents: jax.Array,
    ) -> dict[str, jax.Array]:
        """Returns cotangents: dh_t = cotangent_t + a_(t+1) dh_(t+1), dx = dh, da_t = dh_t h_(t-1)."""
        decay = operands["decay"].astype(jnp.float32)
        # dh_t meets the decay of the step after it: decays move one to the left, and the last token's gradient has
        # none.
        following = jnp.pad(decay[:, 1:], ((0, 0), (0, 1), (0, 0)))
        grad = _scan(following, cotangents, reverse=True)
        before = jnp.pad(out[:, :-1], ((0, 0), (1, 0), (0, 0)))
        return {"decay": grad * before, "x": grad}


def _scan(decay: jax.Array, x: jax.Array, *, reverse: bool = False) -> jax.Array:
    def join(first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        # h -> a h + x, one after the other: a2 (a1 h + x1) + x2. Not commutative: in reverse `first` is the later
        # token.
        return first[0] * second[0], first[1] * second[0] + second[1]

    out: jax.Array = jax.lax.associative_scan(join, (decay, x), reverse=reverse, axis=1)[1]
    return out
