"""The public call: checks shapes, makes the problem, and runs the best kernel."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from kanawa.errors import KernelError
from kanawa.kernels.bad_input import first_bad, refuse_bad_input, values
from kanawa.kernels.run import run
from kanawa.kernels.token_exchange.problem import TOKEN_EXCHANGE, TokenExchangeProblem


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
    refuse_bad_input("token_exchange", _values(rows.shape[0], send_sizes, output_rows))
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


def _values(rows: int, send_sizes: jax.Array, output_rows: int) -> list[str]:
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
