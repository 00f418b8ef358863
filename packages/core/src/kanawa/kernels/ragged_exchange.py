"""Token exchange by XLA's ragged all-to-all, which sends rows and no padding, for the backends that have it."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.token_exchange import TokenExchangeProblem
from kanawa.kernels.verdict import Verdict, first_refusal


class RaggedTokenExchange(Kernel):
    """One collective for the rows, two small ones for the sizes and offsets; a backend names it and its platform."""

    operation: ClassVar[str] = "token_exchange"
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True

    def supports(self, problem: TokenExchangeProblem, device: Any) -> Verdict:
        """Returns support over one mesh axis."""
        del device
        axes = problem.axis_names
        return first_refusal((len(axes) != 1, f"exchanged over {len(axes)} mesh axes; XLA's collective takes one"))

    def forward(self, problem: TokenExchangeProblem, operands: Operands) -> tuple[tuple[jax.Array, jax.Array], Any]:
        """Returns ((received [output_rows, width], sizes by source), where everything went)."""
        axis, sizes = problem.axis_names[0], operands["send_sizes"]
        sources = jax.lax.all_to_all(sizes, axis, 0, 0, tiled=True)
        # With a capacity a source's rows may begin past the room. None of them fits, but of a place past the end
        # the collective may compute an address, if only for no rows: here, and on the way back as what is read.
        offsets = jnp.minimum(operands.get("receive_offsets", _starts(sources)), problem.output_rows)
        # Rows past the room would overwrite memory: both sides agree on fewer.
        fitting = jnp.clip(problem.output_rows - offsets, 0, sources)
        route = {
            "input": _starts(sizes),
            # The sender says where its rows land, which only the receiver knows: both sides exchange.
            "sent": jax.lax.all_to_all(fitting, axis, 0, 0, tiled=True),
            "output": jax.lax.all_to_all(offsets, axis, 0, 0, tiled=True),
            "received": fitting,
            "own": offsets,
        }
        room = jnp.zeros((problem.output_rows, problem.width), operands["rows"].dtype)
        rows = _exchange(operands["rows"], room, route, axis)
        return (rows, sources), route

    def backward(
        self, problem: TokenExchangeProblem, operands: Operands, out: Any, residuals: Any, cotangents: Any
    ) -> dict[str, jax.Array]:
        """Returns the cotangent of the rows: the received ones' sent back to where they lay."""
        del out
        axis, route = problem.axis_names[0], residuals
        back = {
            "input": route["own"],
            "sent": route["received"],
            "output": jax.lax.all_to_all(route["input"], axis, 0, 0, tiled=True),
            "received": route["sent"],
        }
        rows = jnp.zeros(operands["rows"].shape, cotangents[0].dtype)
        return {"rows": _exchange(cotangents[0], rows, back, axis)}


def _exchange(rows: jax.Array, room: jax.Array, route: dict[str, jax.Array], axis: str) -> jax.Array:
    places = (route[name].astype(jnp.int32) for name in ("input", "sent", "output", "received"))
    exchanged: jax.Array = jax.lax.ragged_all_to_all(rows, room, *places, axis_name=axis)
    return exchanged


def _starts(sizes: jax.Array) -> jax.Array:
    return jnp.cumsum(sizes) - sizes
