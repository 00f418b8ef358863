"""Selection of a token's experts by their scores: the best of all, or the best of the best groups."""

import abc

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int


class Selection(kn.Configurable):
    """A pure function of fp32 selection scores, which may include a balancing bias."""

    @abc.abstractmethod
    def choose(self, scores: Float[Array, "N X"], top_k: int) -> Int[Array, "N k"]:
        """Returns the chosen experts of each token, best first."""

    def problems(self, num_experts: int, top_k: int) -> list[str]:
        """Returns what is wrong with this selection for so many experts."""
        return [] if 0 < top_k <= num_experts else [f"top_k is {top_k}, expected 1 to num_experts ({num_experts})"]


class Best(Selection):
    """The `top_k` experts of highest score; ties go to the lower index."""

    def choose(self, scores: Float[Array, "N X"], top_k: int) -> Int[Array, "N k"]:
        """Returns the experts of highest score."""
        return jax.lax.top_k(scores, top_k)[1]


class GroupLimited(Selection):
    """The best experts among the best `top_groups` of `num_groups` equal groups, to bound a token's network traffic.

    A group counts as the sum of its `group_top` best scores: 2 in DeepSeek-V3 (arXiv:2412.19437, section 2.1.2), 1
    (its maximum) in DeepSeek-V2 (arXiv:2405.04434, section 2.2.2).
    """

    class Config(Selection.Config):
        num_groups: kn.Size = kn.REQUIRED
        top_groups: kn.Size = kn.REQUIRED
        group_top: kn.Size = 2

    def choose(self, scores: Float[Array, "N X"], top_k: int) -> Int[Array, "N k"]:
        """Returns the experts of highest score within the chosen groups."""
        cfg = self.config
        grouped = scores.reshape(scores.shape[0], cfg.num_groups, -1)
        group_scores = jnp.sum(jax.lax.top_k(grouped, cfg.group_top)[0], axis=-1)
        groups = jax.lax.top_k(group_scores, cfg.top_groups)[1]
        allowed = jnp.any(groups[:, :, None] == jnp.arange(cfg.num_groups)[None, None], axis=1)
        # Minus infinity, where some other implementations write 0: scores with a balancing bias may be negative, and 0
        # would then win from a group that wasn't chosen.
        masked = jnp.where(allowed[:, :, None], grouped, -jnp.inf)
        return jax.lax.top_k(masked.reshape(scores.shape), top_k)[1]

    def problems(self, num_experts: int, top_k: int) -> list[str]:
        """Returns what is wrong with the groups."""
        cfg = self.config
        if num_experts % cfg.num_groups:
            return [f"num_experts ({num_experts}) is not a multiple of selection.num_groups ({cfg.num_groups})"]
        size, problems = num_experts // cfg.num_groups, super().problems(num_experts, top_k)
        if not 0 < cfg.top_groups <= cfg.num_groups:
            problems.append(f"selection.top_groups is {cfg.top_groups}, expected 1 to num_groups ({cfg.num_groups})")
        elif top_k > cfg.top_groups * size:
            room = cfg.top_groups * size
            problems.append(f"top_k ({top_k}) is more than the {room} experts of {cfg.top_groups} groups")
        if not 0 < cfg.group_top <= size:
            problems.append(f"selection.group_top is {cfg.group_top}, expected 1 to the group's {size} experts")
        return problems
