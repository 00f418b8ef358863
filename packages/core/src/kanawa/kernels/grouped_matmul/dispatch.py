"""The public call: checks shapes, makes the problem, and runs the best kernel."""

import jax
import numpy as np

from kanawa.errors import KernelError
from kanawa.kernels.bad_input import first_bad, mixed_dtypes, not_floats, not_integers, refuse_bad_input, values
from kanawa.kernels.grouped_matmul.problem import GROUPED_MATMUL, GroupedMatmulProblem
from kanawa.kernels.run import run


def grouped_matmul(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """Returns [M, N]: the rows of group g times rhs[g], in the dtype of lhs, accumulated in fp32.

    Args:
        lhs: [M, K], rows sorted by group.
        rhs: [G, K, N].
        group_sizes: int [G]: group g owns the next group_sizes[g] rows. Their sum may be less than
            M: the rows after it come out as zeros.

    Inside shard_map, every shard multiplies its own rows with its own groups. Raises KernelError
    where shapes or dtypes don't fit together, sizes at hand (outside of jit) are negative or add
    up to more than M, or no kernel applies.
    """
    fits = lhs.ndim == 2 and rhs.ndim == 3 and lhs.shape[1] == rhs.shape[1]
    if not fits or group_sizes.shape != rhs.shape[:1]:
        message = (
            f"grouped_matmul: lhs {lhs.shape}, rhs {rhs.shape}, group_sizes {group_sizes.shape}; "
            f"expected [M, K], [G, K, N] and [G]"
        )
        raise KernelError(message)
    operands = {"lhs": lhs, "rhs": rhs, "group_sizes": group_sizes}
    broken = [*not_floats(operands, ("lhs", "rhs")), *mixed_dtypes(operands, ("lhs", "rhs"))]
    broken += not_integers(operands, ("group_sizes",), "it counts rows, and counts")
    refuse_bad_input("grouped_matmul", broken or _sizes(lhs.shape[0], group_sizes))
    problem = GroupedMatmulProblem(
        rows=lhs.shape[0],
        inner=lhs.shape[1],
        columns=rhs.shape[2],
        groups=rhs.shape[0],
        dtype=str(lhs.dtype),
        rhs_dtype=str(rhs.dtype),
    )
    out: jax.Array = run(GROUPED_MATMUL, problem, operands)
    return out


def _sizes(rows: int, group_sizes: jax.Array) -> list[str]:
    sizes = values(group_sizes)
    if sizes is None:
        return []
    broken = first_bad("group_sizes", sizes, sizes < 0, "a group has at least 0 rows")
    total = int(sizes.sum(dtype=np.int64))
    return broken + [f"group_sizes add up to {total}; lhs has {rows} rows"] * (total > rows)
