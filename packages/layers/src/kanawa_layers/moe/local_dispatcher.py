"""Dropless dispatch on one shard: sort token copies by expert, so that experts become one grouped matmul."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from kanawa.contracts import TokenDispatcher


class SortPlan(NamedTuple):
    """How to undo the sort: for copy c of the sorted rows, `order[c]` is its place among token-major copies."""

    order: Int[Array, " copies"]
    num_tokens: int


class LocalDispatcher(TokenDispatcher):
    """Drops no token: there is no capacity. Copies of padding come last and belong to no expert."""

    skips_padding = True

    def dispatch(
        self, x: Float[Array, "N E"], expert_ids: Int[Array, "N k"]
    ) -> tuple[Float[Array, "copies E"], Int[Array, " X"], SortPlan]:
        """Returns token copies sorted by expert (stable), copies per expert, and the plan to undo it.

        Copies with the id `num_experts` are in no group: a grouped matmul returns zeros for them.
        """
        flat = expert_ids.reshape(-1)
        # Stable, so that a token's rank within its expert, and with it every rounding, is the same on any device.
        order = jnp.argsort(flat, stable=True)
        # Copies are token-major before the sort: copy c is of token c // top_k.
        rows = jnp.take(x, order // expert_ids.shape[1], axis=0)
        # Ids past the last expert aren't counted, so padding is in no group.
        sizes = jnp.bincount(flat, length=self.config.num_experts).astype(jnp.int32)
        return rows, sizes, SortPlan(order, x.shape[0])

    def combine(
        self, rows: Float[Array, "copies E"], weights: Float[Array, "N k"], plan: SortPlan
    ) -> Float[Array, "N E"]:
        """Returns each token's weighted sum over its copies, summed in fp32, in the rows' dtype."""
        top_k = weights.shape[1]
        # order is a permutation: gathering with its inverse is cheaper to differentiate than a scatter.
        inverse = jnp.argsort(plan.order)
        copies = jnp.take(rows, inverse, axis=0).reshape(plan.num_tokens, top_k, rows.shape[-1])
        mixed = jnp.einsum("nke,nk->ne", copies.astype(jnp.float32), weights)
        return mixed.astype(rows.dtype)
