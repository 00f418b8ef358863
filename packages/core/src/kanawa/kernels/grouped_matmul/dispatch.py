"""The public call: checks shapes, makes the problem, and runs the best kernel."""

import jax
import jax.numpy as jnp

from kanawa.errors import KernelError
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
    where shapes don't fit together or no kernel applies.
    """
    fits = lhs.ndim == 2 and rhs.ndim == 3 and lhs.shape[1] == rhs.shape[1]
    if not fits or group_sizes.shape != rhs.shape[:1]:
        message = (
            f"grouped_matmul: lhs {lhs.shape}, rhs {rhs.shape}, group_sizes {group_sizes.shape}; "
            f"expected [M, K], [G, K, N] and [G]"
        )
        raise KernelError(message)
    if not jnp.issubdtype(group_sizes.dtype, jnp.integer):
        message = f"grouped_matmul: group_sizes is {group_sizes.dtype}; it counts rows, pass integers"
        raise KernelError(message)
    problem = GroupedMatmulProblem(
        rows=lhs.shape[0],
        inner=lhs.shape[1],
        columns=rhs.shape[2],
        groups=rhs.shape[0],
        dtype=str(lhs.dtype),
        rhs_dtype=str(rhs.dtype),
    )
    operands = {"lhs": lhs, "rhs": rhs, "group_sizes": group_sizes}
    return run(GROUPED_MATMUL, problem, operands)
