"""The ragged exchange against the padded one, on a stand-in for XLA's collective that checks all places it is given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.kernels.ragged_exchange import RaggedTokenExchange
from kanawa.kernels.token_exchange import PaddedTokenExchange, TokenExchangeProblem

SHARDS, ROWS, WIDTH = 3, 8, 2
#: Rows that each shard sends to each; the first is sent more than there is room for.
SIZES = np.array([[6, 1, 1], [5, 2, 1], [4, 0, 2]], np.int32)


def checked(operand, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name):
    """Does what `ragged_all_to_all` does under vmap; NaN everywhere if a place lies outside."""
    inside = (input_offsets + send_sizes <= operand.shape[0]) & (input_offsets >= 0) & (output_offsets >= 0)
    # Whom the rows go to has as large a room as this shard.
    inside &= output_offsets + send_sizes <= output.shape[0]
    me = jax.lax.axis_index(axis_name)
    rows, *places = (jax.lax.all_gather(x, axis_name) for x in (operand, input_offsets, send_sizes, output_offsets))
    for source in range(SHARDS):
        begin, size, to = (place[source, me] for place in places)
        inside &= size == recv_sizes[source]
        index = jnp.arange(operand.shape[0])
        taken = jnp.take(rows[source], begin + index, axis=0, mode="fill", fill_value=0)
        target = jnp.where(index < size, to + index, output.shape[0])
        output = output.at[target].set(taken, mode="drop")
    return jnp.where(inside.all(), output, jnp.nan)


@pytest.mark.parametrize("room", [20, 7, 3])
def test_both_ways_with_and_without_room_for_all(monkeypatch, room):
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", checked)
    problem = TokenExchangeProblem(
        rows=ROWS, width=WIDTH, dtype="float32", output_rows=room, shards=SHARDS, axis_names=("expert",)
    )
    rng = np.random.default_rng(0)
    rows = jnp.asarray(rng.normal(size=(SHARDS, ROWS, WIDTH)), jnp.float32)
    cotangents = jnp.asarray(rng.normal(size=(SHARDS, room, WIDTH)), jnp.float32)
    ragged, padded = RaggedTokenExchange(), PaddedTokenExchange()

    def both_ways(rows, sizes, cotangents):
        operands = {"rows": rows, "send_sizes": sizes}
        out, residuals = ragged.forward(problem, operands)
        back = ragged.backward(problem, operands, out, residuals, (cotangents, None))
        return out[0], back["rows"]

    def reference(rows, sizes, cotangents):
        def received(rows):
            return padded.forward(problem, {"rows": rows, "send_sizes": sizes})[0][0]

        out, transposed = jax.vjp(received, rows)
        return out, transposed(cotangents)[0]

    for mine, true in zip(
        jax.vmap(both_ways, axis_name="expert")(rows, SIZES, cotangents),
        jax.vmap(reference, axis_name="expert")(rows, SIZES, cotangents),
        strict=True,
    ):
        np.testing.assert_allclose(mine, true, rtol=1e-6)
