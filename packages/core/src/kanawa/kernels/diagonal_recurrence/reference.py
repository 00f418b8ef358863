"""diagonal_recurrence.any.reference: one token after the other. The truth on any device."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from kanawa.kernels.accumulate import wide
from kanawa.kernels.diagonal_recurrence.problem import DiagonalRecurrenceProblem
from kanawa.kernels.operation import Operands, UniversalKernel


class ReferenceDiagonalRecurrence(UniversalKernel):
    """A `lax.scan` over tokens."""

    name: ClassVar[str] = "diagonal_recurrence.any.reference"
    operation: ClassVar[str] = "diagonal_recurrence"
    autodiff: ClassVar[bool] = True

    def forward(self, problem: DiagonalRecurrenceProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (h fp32 [B, T, C], None)."""

        def one_token(h: jax.Array, token: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            decay, x = token
            h = decay * h + x
            return h, h

        decay, x = (jnp.moveaxis(operands[name].astype(wide(problem.dtype)), 1, 0) for name in ("decay", "x"))
        _, h = jax.lax.scan(one_token, jnp.zeros_like(x[0]), (decay, x))
        return jnp.moveaxis(h, 0, 1), None
