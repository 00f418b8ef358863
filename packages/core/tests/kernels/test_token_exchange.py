"""Exchanging rows over eight shards, against NumPy lists; and back again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from kanawa.errors import KernelError
from kanawa.kernels.token_exchange import token_exchange

SHARDS, ROWS, WIDTH = 8, 10, 3


@pytest.fixture
def mesh():
    return jax.make_mesh((SHARDS,), ("expert",), axis_types=(AxisType.Auto,))


@pytest.fixture
def sizes():
    """sizes[i, j]: rows from i to j; shard 0 sends all to 5, shard 1 nothing, the rest vary."""
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(ROWS - 1, np.ones(SHARDS) / SHARDS, size=SHARDS)
    drawn[0], drawn[1] = np.eye(SHARDS, dtype=int)[5] * ROWS, 0
    return drawn.astype(np.int32)


def sharded(mesh, function):
    """`function` on local arrays, global ones being stacked along their first dimension."""
    mapped = jax.shard_map(function, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"), check_vma=False)
    return jax.jit(mapped)


def expected_rows(rows, sizes, receiver):
    """The rows that `receiver` gets, in order of their source."""
    starts = np.cumsum(sizes, axis=1) - sizes
    pieces = [
        rows[source, starts[source, receiver] : starts[source, receiver] + sizes[source, receiver]]
        for source in range(SHARDS)
    ]
    return np.concatenate(pieces)


@pytest.mark.parametrize("room", [SHARDS * ROWS, 12])
def test_rows_arrive_in_order_and_what_does_not_fit_is_dropped(room, mesh, sizes, normal):
    rows = normal(SHARDS, ROWS, WIDTH)

    def exchange(rows, sizes):
        return token_exchange(rows, sizes, axis_name="expert", output_rows=room)

    received, counts = sharded(mesh, exchange)(rows.reshape(-1, WIDTH), jnp.asarray(sizes.reshape(-1)))
    received = np.asarray(received).reshape(SHARDS, room, WIDTH)
    np.testing.assert_array_equal(np.asarray(counts).reshape(SHARDS, SHARDS), sizes.T)
    for shard in range(SHARDS):
        want = expected_rows(np.asarray(rows), sizes, shard)[:room]
        np.testing.assert_array_equal(received[shard, : len(want)], want)
        np.testing.assert_array_equal(received[shard, len(want) :], 0)


def test_there_and_back_is_the_identity_with_its_gradient(mesh, sizes, normal):
    rows, cotangent = normal(SHARDS * ROWS, WIDTH), normal(SHARDS * ROWS, WIDTH)

    def there_and_back(rows, sizes, cotangent):
        def trip(rows):
            sent = token_exchange(rows, sizes, axis_name="expert", output_rows=SHARDS * ROWS)
            back, _ = token_exchange(
                2 * sent[0],
                sent[1],
                axis_name="expert",
                output_rows=ROWS,
                receive_offsets=jnp.cumsum(sizes) - sizes,
            )
            return back

        back, pull = jax.vjp(trip, rows)
        return back, pull(cotangent)[0]

    back, grad = sharded(mesh, there_and_back)(rows, jnp.asarray(sizes.reshape(-1)), cotangent)
    sent = np.arange(ROWS)[None] < sizes.sum(1)[:, None]
    keep = 2 * sent.reshape(-1, 1).astype(np.float32)
    np.testing.assert_allclose(back, rows * keep, rtol=1e-6)
    np.testing.assert_allclose(grad, cotangent * keep, rtol=1e-6)


def test_without_an_axis_rows_go_nowhere(normal):
    rows = normal(4, WIDTH)
    received, counts = token_exchange(rows, jnp.array([3], jnp.int32), output_rows=6)
    np.testing.assert_array_equal(received, np.pad(np.asarray(rows)[:3], [(0, 3), (0, 0)]))
    np.testing.assert_array_equal(counts, [3])


def test_misuse_is_named(normal):
    with pytest.raises(KernelError, match="'expert' isn't a manual mesh axis here"):
        token_exchange(normal(4, 3), jnp.ones(8, jnp.int32), axis_name="expert", output_rows=4)
    with pytest.raises(KernelError, match=r"expected \[M, D\] and \(1,\)"):
        token_exchange(normal(4, 3), jnp.ones(8, jnp.int32), output_rows=4)
    with pytest.raises(KernelError, match="count rows; pass integers"):
        token_exchange(normal(4, 3), jnp.ones(1), output_rows=4)
