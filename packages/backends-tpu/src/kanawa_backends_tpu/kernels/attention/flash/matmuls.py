"""Products on the matrix units, and the powers of two that softmax is done in."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.problem import AttentionProblem

#: Which dimensions of two matrices a product sums over, by what each is summed along.
ROWS_BY_ROWS = ((1,), (1,))
ROWS_BY_COLUMNS = ((1,), (0,))
COLUMNS_BY_COLUMNS = ((0,), (0,))


def tile_matmul(a: jax.Array, b: jax.Array, summed: tuple[tuple[int, ...], tuple[int, ...]]) -> jax.Array:
    """Returns the product in fp32: bf16 in one pass, fp32 with all its bits."""
    exact = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jax.lax.dot_general(a, b, (summed, ((), ())), precision=exact, preferred_element_type=jnp.float32)


@dataclass(frozen=True)
class Base:
    """Scores to base 2: the units raise 2 to a power, and the factor joins the scale of the queries.

    Attributes:
        queries: what queries are multiplied with before the kernel.
        to_natural: what such a score is multiplied with to be one to base e.
    """

    queries: float
    cap: float | None
    to_natural: float = math.log(2)

    def capped(self, scores: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Returns scores to base 2 from a product of queries and keys, and the cap's tanh for its gradient."""
        if self.cap is None:
            return scores, None
        bent = jnp.tanh(scores)
        return bent * (self.cap / self.to_natural), bent


def base_of(problem: AttentionProblem) -> Base:
    """Returns the factors of a problem."""
    if problem.logit_cap is not None:
        return Base(problem.scale / problem.logit_cap, problem.logit_cap)
    return Base(problem.scale / math.log(2), None)
