"""The gradient of a grouped matmul's matrices: for each group, the sum over its rows of lhs times dout.

In JAX's own `tgmm` every tile is masked twice and transposed in fp32, which takes longer than its matmuls where matrix
units are large. Here only tiles in which a group begins or ends are masked, once: a product with zero is zero.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.megablox.gmm import make_group_metadata


def weight_gradient(
    lhs: jax.Array,
    dout: jax.Array,
    sizes: jax.Array,
    *,
    tiles: tuple[int, int, int],
    dtype: Any,
    vmem_bytes: int | None = None,
    interpret: bool = False,
) -> jax.Array:
    """Returns [G, K, N] in `dtype`, summed in fp32; zeros for a group without rows.

    Args:
        lhs: [M, K], finite, rows sorted by group; M is a multiple of the tile's.
        dout: [M, N].
        sizes: int32 [G]: group g owns the next sizes[g] rows.
        tiles: of M, K and N.
        vmem_bytes: on-chip memory that the call may use; None leaves it to the compiler.
    """
    (rows, inner), columns, groups = lhs.shape, dout.shape[1], sizes.shape[0]
    of_rows, of_inner, of_columns = tiles
    metadata, active = make_group_metadata(
        group_sizes=sizes,
        m=rows,
        tm=of_rows,
        start_group=jnp.int32(0),
        num_nonzero_groups=groups,
        visit_empty_groups=True,
    )
    grid = (pl.cdiv(columns, of_columns), pl.cdiv(inner, of_inner), active)
    call = pl.pallas_call(
        lambda *refs: _one_tile(of_rows, *refs),
        name="weight_gradient",
        out_shape=jax.ShapeDtypeStruct((groups, inner, columns), dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid,
            in_specs=[
                pl.BlockSpec((of_rows, of_inner), lambda n, k, step, data: (data[2][step], k)),
                pl.BlockSpec((of_rows, of_columns), lambda n, k, step, data: (data[2][step], n)),
            ],
            out_specs=pl.BlockSpec((None, of_inner, of_columns), lambda n, k, step, data: (data[1][step], k, n)),
            scratch_shapes=[pltpu.VMEM((of_inner, of_columns), jnp.float32)],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=vmem_bytes
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * rows * inner * columns,
            bytes_accessed=lhs.nbytes * grid[0] + dout.nbytes * grid[1] + groups * inner * columns * 4,
            transcendentals=0,
        ),
        interpret=interpret,
    )
    out: jax.Array = call(metadata, lhs, dout)
    return out


def _one_tile(of_rows: int, metadata: Any, lhs: Any, dout: Any, out: Any, total: Any) -> None:
    """Adds one tile of rows to its group's sum, and writes the sum after the group's last."""
    starts, group_ids, tile_ids = metadata
    step, last = pl.program_id(2), pl.num_programs(2) - 1
    group = group_ids[step]
    start, end, first_row = starts[group], starts[group + 1], tile_ids[step] * of_rows
    whole = (start <= first_row) & (first_row + of_rows <= end)

    @pl.when((step == 0) | (group_ids[jnp.maximum(step - 1, 0)] != group))
    def _begin() -> None:
        total[...] = jnp.zeros_like(total)

    def add(right: jax.Array) -> None:
        # Both sides are summed over their rows: the compiler transposes the left one in its own dtype.
        total[...] += jax.lax.dot_general(lhs[...], right, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)

    def inside() -> None:
        add(dout[...])

    def at_an_edge() -> None:
        row = jax.lax.broadcasted_iota(jnp.int32, dout.shape, 0) + first_row
        mine = (row >= start) & (row < end)
        # Selected in fp32, which every generation can.
        add(jnp.where(mine, dout[...].astype(jnp.float32), 0.0).astype(dout.dtype))

    @pl.when(start < end)
    def _rows() -> None:
        jax.lax.cond(whole, inside, at_an_edge)

    @pl.when((step == last) | (group_ids[jnp.minimum(step + 1, last)] != group))
    def _end() -> None:
        out[...] = total[...].astype(out.dtype)
