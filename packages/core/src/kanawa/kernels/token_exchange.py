"""Token exchange: rows sorted by destination travel between the shards of a mesh axis, and back."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from kanawa.errors import KernelError
from kanawa.kernels.bad_input import first_bad, refuse_bad_input, values
from kanawa.kernels.operation import Operands, Operation, Problem, UniversalKernel
from kanawa.kernels.run import run

#: It runs inside shard_map, where everything is local already: nothing is left to split.
TOKEN_EXCHANGE = Operation(
    name="token_exchange",
    operand_axes={"rows": (None, None), "send_sizes": (None,), "receive_offsets": (None,)},
    output_axes=((None, None), (None,)),
    manual_axes=(),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenExchangeProblem(Problem):
    """One shard's part of an exchange.

    Attributes:
        rows, width, dtype: of the rows that this shard may send.
        output_rows: size of the buffer it receives into.
        shards: number of shards that exchange.
        axis_names: the manual mesh axes exchanged over; empty for one shard.
        has_receive_offsets: whether the operands say where each source's rows go.
    """

    rows: int
    width: int
    dtype: str
    output_rows: int
    shards: int
    axis_names: tuple[str, ...] = ()
    has_receive_offsets: bool = False

    def describe(self) -> str:
        """Returns one line, such as "bfloat16[4096,2048] to [8192,2048] over expert=8"."""
        axes = "x".join(self.axis_names) or "nothing"
        out = f"[{self.output_rows},{self.width}]"
        offsets = " at given offsets" if self.has_receive_offsets else ""
        return f"{self.dtype}[{self.rows},{self.width}] to {out} over {axes}={self.shards}{offsets}"

    def result(self, operands: Operands) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """Returns [output_rows, width] like the rows, and a size for each shard."""
        rows = jax.ShapeDtypeStruct((self.output_rows, self.width), operands["rows"].dtype)
        return rows, jax.ShapeDtypeStruct((self.shards,), operands["send_sizes"].dtype)


class PaddedTokenExchange(UniversalKernel):
    """token_exchange.any.padded: an all-to-all of equal, padded buffers, which every backend can do.

    XLA's `ragged_all_to_all` would send no padding, but doesn't exist on its CPU backend. Rows that a peer can't have
    sent cost bandwidth here: a buffer has room for min(rows, output_rows) from each pair of shards. Linear in the
    rows: JAX differentiates it into the way back.
    """

    name: ClassVar[str] = "token_exchange.any.padded"
    operation: ClassVar[str] = "token_exchange"
    autodiff: ClassVar[bool] = True

    def forward(self, problem: TokenExchangeProblem, operands: Operands) -> tuple[tuple[jax.Array, jax.Array], None]:
        """Returns ((received [output_rows, width], sizes by source [shards]), None)."""
        rows, sizes = operands["rows"], operands["send_sizes"]
        room = min(problem.rows, problem.output_rows)
        # Exclusive: where each destination's rows start. [shards, room, D] after the vmap, one buffer for each.
        starts = jnp.cumsum(sizes) - sizes
        buffers = jax.vmap(lambda start, size: _take(rows, start, size, room))(starts, sizes)
        received = sizes
        if problem.shards > 1:
            axes = problem.axis_names
            buffers = jax.lax.all_to_all(buffers, axes, 0, 0, tiled=True)
            received = jax.lax.all_to_all(sizes, axes, 0, 0, tiled=True)
        offsets = operands.get("receive_offsets")
        if offsets is None:
            offsets = jnp.cumsum(received) - received
        return (_place(buffers, offsets, received, problem.output_rows), received), None


def _take(rows: jax.Array, start: jax.Array, size: jax.Array, room: int) -> jax.Array:
    """Returns `size` rows from `start` on, in a buffer of `room` rows."""
    index = jnp.arange(room, dtype=start.dtype)
    taken = jnp.take(rows, start + index, axis=0, mode="fill", fill_value=0)
    return jnp.where((index < size)[:, None], taken, jnp.zeros((), rows.dtype))


def _place(buffers: jax.Array, offsets: jax.Array, sizes: jax.Array, output_rows: int) -> jax.Array:
    """Returns rows [shards, room, width] at their offsets; what doesn't fit is dropped."""
    shards, room, width = buffers.shape
    index = jnp.arange(room, dtype=offsets.dtype)[None]
    # `output_rows` is one past the end, which mode="drop" leaves out: so go padding and what doesn't fit.
    target = jnp.where(index < sizes[:, None], offsets[:, None] + index, output_rows)
    out = jnp.zeros((output_rows, width), buffers.dtype)
    flat = buffers.reshape(shards * room, width)
    # Added, not set: places are distinct, so it is the same, and the transpose of a scatter-add is one gather.
    return out.at[target.reshape(-1)].add(flat, mode="drop")


def token_exchange(
    rows: jax.Array,
    send_sizes: jax.Array,
    *,
    output_rows: int,
    axis_name: str | tuple[str, ...] | None = None,
    receive_offsets: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Returns (received [output_rows, D], int [shards]: how many rows each shard sent here).

    Call it inside shard_map, on local arrays; without an axis, or on an axis of one shard, rows go
    nowhere. Received rows are ordered by source shard, then as they were sent; after the last come
    zeros. To send results back, pass them with `send_sizes` as received and `receive_offsets` as
    they were sent from (the exclusive cumulative sum of the first call's send_sizes).

    Args:
        rows: [M, D], sorted by destination shard; rows past the sum of send_sizes stay.
        send_sizes: int [shards]: how many rows go to each shard, in order.
        output_rows: room for received rows; M * shards never overflows. Rows that would land past
            it are dropped, which the returned sizes, being what was sent, let the caller see.
        axis_name: manual mesh axis, or axes with the first one outermost.
        receive_offsets: int [shards]: where the rows from each shard go; by default close together.

    Differentiable in rows. Raises KernelError where shapes don't fit or the axis isn't a manual
    mesh axis.
    """
    names = () if axis_name is None else (axis_name,) if isinstance(axis_name, str) else axis_name
    shards = math.prod(_axis_size(name) for name in names)
    sizes = [send_sizes] if receive_offsets is None else [send_sizes, receive_offsets]
    if rows.ndim != 2 or any(s.shape != (shards,) for s in sizes):
        shapes = ", ".join(str(s.shape) for s in sizes)
        message = (
            f"token_exchange over {names or 'no axis'}: rows {rows.shape}, sizes {shapes}; "
            f"expected [M, D] and ({shards},), one entry a shard"
        )
        raise KernelError(message)
    if not all(jnp.issubdtype(s.dtype, jnp.integer) for s in sizes):
        message = "token_exchange: send_sizes and receive_offsets count rows; pass integers"
        raise KernelError(message)
    refuse_bad_input("token_exchange", _check_sizes(rows.shape[0], send_sizes, output_rows))
    problem = TokenExchangeProblem(
        rows=rows.shape[0],
        width=rows.shape[1],
        dtype=str(rows.dtype),
        output_rows=output_rows,
        shards=shards,
        axis_names=tuple(names),
        has_receive_offsets=receive_offsets is not None,
    )
    operands = {"rows": rows, "send_sizes": send_sizes}
    if receive_offsets is not None:
        operands["receive_offsets"] = receive_offsets
    result: tuple[jax.Array, jax.Array] = run(TOKEN_EXCHANGE, problem, operands)
    return result


def _check_sizes(rows: int, send_sizes: jax.Array, output_rows: int) -> list[str]:
    broken = [f"output_rows {output_rows} must be at least 0"] * (output_rows < 0)
    sizes = values(send_sizes)
    if sizes is None:
        return broken
    total = int(sizes.sum(dtype=np.int64))
    broken += first_bad("send_sizes", sizes, sizes < 0, "a shard is sent at least 0 rows")
    return broken + [f"send_sizes add up to {total}; there are {rows} rows"] * (total > rows)


def _axis_size(name: str) -> int:
    try:
        return jax.lax.axis_size(name)
    except NameError as error:
        message = f"token_exchange: {name!r} isn't a manual mesh axis here; call it inside shard_map over that axis"
        raise KernelError(message) from error
