"""Dispatch on one shard: dropless by sorting, or with a capacity (GShard, Lepikhin et al. 2020, arXiv:2006.16668)."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Bool, Float, Int
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


class SlotPlan(NamedTuple):
    """Where each copy went: its row, and whether it got one. Copies are ordered by choice, then by token."""

    slots: Int[Array, " copies"]
    routed: Bool[Array, " copies"]


class CapacityDispatcher(TokenDispatcher):
    """Limits each expert to `factor * copies / num_experts` rows, filled by first choices before second ones.

    A copy whose expert is full is dropped: the token has its residual stream and its other experts. The share of
    dropped copies is recorded as `dropped`; padding is not dispatched and doesn't count.
    """

    depends_on_batch = True
    skips_padding = True

    class Config(TokenDispatcher.Config):
        factor: kn.Positive = 1.25
        eval_factor: kn.Positive = 2.0

    def dispatch(
        self, x: Float[Array, "N E"], expert_ids: Int[Array, "N k"]
    ) -> tuple[Float[Array, "rows E"], Int[Array, " X"], SlotPlan]:
        """Returns capacity rows for each expert (zeros where unused), their number, and the plan to undo it."""
        num_experts, (num_tokens, top_k) = self.config.num_experts, expert_ids.shape
        factor = self.config.factor if self.train else self.config.eval_factor
        # More rows than tokens are never used: a token chooses an expert once.
        capacity = min(num_tokens, math.ceil(factor * num_tokens * top_k / num_experts))
        # All first choices come before any second one, so that a full expert drops second choices first.
        expert = expert_ids.T.reshape(-1)
        chosen = (expert[:, None] == jnp.arange(num_experts)[None]).astype(jnp.int32)
        earlier = jnp.sum((jnp.cumsum(chosen, axis=0) - chosen) * chosen, axis=1)
        real = expert < num_experts
        routed = real & (earlier < capacity)
        # One slot past the end for what is dropped: writes there are discarded, reads there return zeros.
        slots = jnp.where(routed, expert * capacity + earlier, num_experts * capacity)
        tokens = jnp.tile(jnp.arange(num_tokens), top_k)
        # From rows back to tokens; unused rows point past the last token, which reads as zeros.
        source = jnp.full(num_experts * capacity, num_tokens).at[slots].set(tokens, mode="drop")
        rows = jnp.take(x, source, axis=0, mode="fill", fill_value=0)
        self.record("dropped", kn.Mean(jnp.sum(real & ~routed), jnp.sum(real)))
        return rows, jnp.full(num_experts, capacity, jnp.int32), SlotPlan(slots, routed)

    def combine(
        self, rows: Float[Array, "rows E"], weights: Float[Array, "N k"], plan: SlotPlan
    ) -> Float[Array, "N E"]:
        """Returns each token's weighted sum over its routed copies, summed in fp32, in the rows' dtype."""
        num_tokens, top_k = weights.shape
        copies = jnp.take(rows, plan.slots, axis=0, mode="fill", fill_value=0)
        # Choice-major, as they were dispatched; the local dispatcher's copies are token-major.
        copies = copies.reshape(top_k, num_tokens, rows.shape[-1])
        return jnp.einsum("kne,nk->ne", copies.astype(jnp.float32), weights).astype(rows.dtype)
