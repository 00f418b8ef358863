"""Diagonal recurrence: h_t = a_t h_(t-1) + x_t for each channel on its own.

Legend: B rows, T tokens, C channels.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from kanawa.errors import KernelError
from kanawa.kernels.bad_input import not_floats, not_integers, refuse_bad_input
from kanawa.kernels.operation import Operands, Operation, Problem, UniversalKernel, wide
from kanawa.kernels.run import run
from kanawa.kernels.segments import segments

#: Channels don't meet, so they may be split; the length stays whole on a shard.
DIAGONAL_RECURRENCE = Operation(
    name="diagonal_recurrence",
    operand_axes={"decay": ("batch", None, "mlp"), "x": ("batch", None, "mlp")},
    output_axes=(("batch", None, "mlp"),),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiagonalRecurrenceProblem(Problem):
    """`channels` independent first-order recurrences over `length` tokens of each row, in fp32."""

    batch: int
    length: int
    channels: int
    dtype: str = "float32"

    def describe(self) -> str:
        """Returns one line, such as "float32[8,4096,2560]"."""
        return f"{self.dtype}[{self.batch},{self.length},{self.channels}]"

    def localize(self, operand_shapes: Mapping[str, tuple[int, ...]]) -> "DiagonalRecurrenceProblem":
        """Returns the problem of one shard, whose operands have these shapes."""
        batch, _, channels = operand_shapes["x"]
        return dataclasses.replace(self, batch=batch, channels=channels)

    def result(self, operands: Operands) -> jax.ShapeDtypeStruct:
        """Returns the shape of x in fp32."""
        return jax.ShapeDtypeStruct(operands["x"].shape, wide(self.dtype))


class ReferenceDiagonalRecurrence(UniversalKernel):
    """diagonal_recurrence.any.reference: one token after the other. The truth on any device."""

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


def diagonal_recurrence(
    decay: jax.Array,
    x: jax.Array,
    *,
    initial_state: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Returns (h [B, T, C], final state [B, C]), both fp32, with h_t = decay_t h_(t-1) + x_t.

    Args:
        decay, x: float [B, T, C].
        initial_state: float [B, C]; None for zeros.
        segment_ids: int [B, T]. The state resets where the id changes, except before a row's first
            token, which continues the initial state. 0 is padding: it leaves the state as it is.

    Differentiable in all floating-point operands. Raises KernelError where shapes don't fit together.
    """
    rows = x.shape[:1] + x.shape[2:]
    fits = x.ndim == 3 and decay.shape == x.shape and x.shape[1] > 0
    fits = fits and (initial_state is None or initial_state.shape == rows)
    if not fits or (segment_ids is not None and segment_ids.shape != x.shape[:2]):
        optional = {"initial_state": initial_state, "segment_ids": segment_ids}
        others = "".join(f", {name} {array.shape}" for name, array in optional.items() if array is not None)
        message = (
            f"diagonal_recurrence: decay {decay.shape}, x {x.shape}{others}; expected [B, T, C] twice with T > 0, "
            f"[B, C] and [B, T]"
        )
        raise KernelError(message)
    operands = {"decay": decay, "x": x, "initial_state": initial_state, "segment_ids": segment_ids}
    present = {name: array for name, array in operands.items() if array is not None}
    broken = not_floats(present, ("decay", "x", "initial_state"))
    refuse_bad_input("diagonal_recurrence", [*broken, *not_integers(present, ("segment_ids",), "ids, 0 for padding,")])
    decay, x = decay.astype(jnp.float32), x.astype(jnp.float32)
    if segment_ids is not None:
        resets, real = segments(segment_ids)
        starts = (jnp.diff(resets, axis=1, prepend=0) > 0)[..., None]
        decay = jnp.where(real[..., None], jnp.where(starts, 0.0, decay), 1.0)
        x = jnp.where(real[..., None], x, 0.0)
    if initial_state is not None:
        x = x.at[:, 0].add(decay[:, 0] * initial_state.astype(jnp.float32))
    batch, length, channels = x.shape
    problem = DiagonalRecurrenceProblem(batch=batch, length=length, channels=channels)
    h = run(DIAGONAL_RECURRENCE, problem, {"decay": decay, "x": x})
    return h, h[:, -1]
