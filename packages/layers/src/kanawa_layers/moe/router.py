"""The top-k router, in fp32 (Shazeer et al. 2017, arXiv:1701.06538), and its slots: scores, selection, balancing."""

import abc
from typing import NamedTuple

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.kernels.matmul import matmul


class Scoring(kn.Configurable):
    """A pure function of fp32 logits, elementwise or over the experts."""

    @abc.abstractmethod
    def scores(self, logits: Float[Array, "N X"]) -> Float[Array, "N X"]:
        """Returns non-negative fp32 scores that grow with the logits."""


class Softmax(Scoring):
    """Probabilities over all experts (Shazeer et al. 2017, arXiv:1701.06538).

    With the router's `normalise_weights` the weights are the softmax over the chosen logits alone, so top-k before
    softmax (Mixtral's paper, gpt-oss) and softmax before top-k are the same thing.
    """

    def scores(self, logits: Float[Array, "N X"]) -> Float[Array, "N X"]:
        """Returns the softmax over experts."""
        return jax.nn.softmax(logits, axis=-1)


class Sigmoid(Scoring):
    """Each expert on its own (DeepSeek-V3, arXiv:2412.19437, equation 15; Llama 4)."""

    def scores(self, logits: Float[Array, "N X"]) -> Float[Array, "N X"]:
        """Returns the logistic function of each logit."""
        return jax.nn.sigmoid(logits)


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


class BiasBalancing(kn.Module):
    """A bias for each expert, added to selection scores only; no gradient reaches it, and weights don't include it.

    Balancing without a loss (Wang et al. 2024, arXiv:2408.15664; DeepSeek-V3). After each training call it moves by
    `rate`: up for experts with less than the mean load, down for the others.
    """

    class Config(kn.Module.Config):
        num_experts: kn.Size = kn.FROM_PARENT
        rate: kn.NonNegative = 0.001
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"bias": "e_score_correction_bias"})

    def setup(self) -> None:
        """Declares the bias as state, zeros, fp32."""
        # fp32: near 1, bfloat16 has steps of 1 / 128, in which updates of 0.001 would be lost.
        self.add_state("bias", (self.config.num_experts,), axes=("experts",))

    def bias(self) -> Float[Array, " X"]:
        """Returns the bias of this step."""
        return self.state("bias")

    def observe(self, load: Float[Array, " X"]) -> None:
        """Moves the bias, in training, by each expert's share of the chosen copies."""
        if self.train:
            # Steps of one size, as in the paper: with steps proportional to the imbalance, one unusual batch could
            # change every choice.
            self.update("bias", self.state("bias") + self.config.rate * jnp.sign(jnp.mean(load) - load))


class Routing(NamedTuple):
    """For each of N tokens: the chosen experts [N, top_k] and their weights [N, top_k], fp32."""

    expert_ids: Int[Array, "N k"]
    weights: Float[Array, "N k"]


class TopKRouter(kn.Module):
    """Chooses `top_k` experts for each token by fp32 scores, which also weigh them.

    Slots: how logits become scores, how scores select, and a balancing bias that only selection sees. Weights are
    renormalised over the chosen experts where `normalise_weights`, then multiplied by `weight_scale` (DeepSeek-V3's
    routed scaling factor). `jitter` multiplies the inputs by uniform noise in training (Switch, arXiv:2101.03961).
    Records the largest expert's load. Adds, where their coefficients are not 0: the load-balance loss of the whole
    batch (Switch, equation 4), of each row of it (DeepSeek-V3, equations 17 to 20), of `expert_groups` equal groups of
    experts, such as those of a device (DeepSeek-V2, arXiv:2405.04434, equations 26 to 28; `device_balance_loss`), each
    1 when balanced; and the router z-loss (ST-MoE, arXiv:2202.08906).
    """

    balancing: BiasBalancing | None

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        num_experts: kn.Size = kn.FROM_PARENT
        top_k: kn.Size = 2
        bias: bool = False
        scoring: Scoring.Config = Softmax.Config()
        selection: Selection.Config = Best.Config()
        balancing: BiasBalancing.Config | None = None
        normalise_weights: bool = True
        weight_scale: kn.Finite = 1.0
        jitter: kn.NonNegative = 0.0
        balance_loss: kn.NonNegative = 0.01
        row_balance_loss: kn.NonNegative = 0.0
        device_balance_loss: kn.NonNegative = 0.0
        expert_groups: kn.Size = 1
        z_loss: kn.NonNegative = 0.001
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Matrix.Config()), "bias": "bias"},
            children={"balancing": ""},
        )

        def check(self) -> list[str]:
            """Returns what is wrong with the selection, once the number of experts is known."""
            selection: Selection = self.selection.build()
            if not isinstance(self.num_experts, int):
                return []
            problems = selection.problems(self.num_experts, self.top_k)
            if self.num_experts % self.expert_groups:
                problems.append(
                    f"num_experts ({self.num_experts}) is not a multiple of expert_groups ({self.expert_groups})"
                )
            return problems

    def setup(self) -> None:
        """Declares the router's weight; it never decays and stays fp32."""
        cfg = self.config
        self.add_param("weight", (cfg.input_dim, cfg.num_experts), axes=("embed", "experts"), weight_decay=0.0)
        if cfg.bias:
            self.add_param("bias", (cfg.num_experts,), axes=("experts",), init=kn.zeros, weight_decay=0.0)
        self.add_child("balancing", cfg.balancing, num_experts=cfg.num_experts)
        self._scoring, self._selection = cfg.scoring.build(), cfg.selection.build()

    def forward(self, x: Float[Array, "N E"], valid: Float[Array, " N"], rows: int = 1) -> Routing:
        """Returns the routing of each token; tokens whose `valid` is 0 don't count in losses, metrics or state.

        The tokens are those of `rows` rows, one row after another.
        """
        cfg = self.config
        logits = self._logits(x)
        scores = self._scoring.scores(logits)
        preference = jax.lax.stop_gradient(scores)
        if self.balancing is not None:
            # The bias affects selection only: weights below come from the scores, so no gradient reaches it.
            preference = preference + self.balancing.bias()[None]
        # Integers: gradients reach the router through the weights of the chosen experts alone.
        expert_ids = self._selection.choose(preference, cfg.top_k)
        weights = jnp.take_along_axis(scores, expert_ids, axis=-1)
        if cfg.normalise_weights:
            # Sigmoid scores may all underflow; DeepSeek's own code guards with the same number.
            weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + 1e-20)
        self._account(logits, scores, expert_ids, valid, rows)
        return Routing(expert_ids, weights * cfg.weight_scale)

    def _logits(self, x: Float[Array, "N E"]) -> Float[Array, "N X"]:
        jitter, x32 = self.config.jitter, x.astype(jnp.float32)
        if jitter and self.train:
            x32 = x32 * jax.random.uniform(self.next_key(), x.shape, minval=1.0 - jitter, maxval=1.0 + jitter)
        # By default, accelerators round the inputs of an fp32 matmul to fewer bits.
        logits = matmul(x32, self.param("weight", jnp.float32), precision="highest")
        return logits + self.param("bias", jnp.float32)[None] if self.config.bias else logits

    def _account(
        self,
        logits: Float[Array, "N X"],
        scores: Float[Array, "N X"],
        expert_ids: Int[Array, "N k"],
        valid: Float[Array, " N"],
        rows: int,
    ) -> None:
        cfg, count = self.config, jnp.sum(valid)
        # Counted over all k choices at once: top-k ids of a token differ, so entries are 0 or 1.
        chosen = jax.nn.one_hot(expert_ids, cfg.num_experts, dtype=jnp.float32).sum(1)
        # A microbatch of nothing but padding would divide by 0, and its zero weight would not remove a NaN.
        safe = jnp.maximum(count, 1.0)
        load = jnp.sum(chosen * valid[:, None], 0) / (safe * cfg.top_k)
        self.record("max_load", kn.Max(jnp.max(load)))
        if self.balancing is not None:
            self.balancing.observe(load)
        shares = scores / (jnp.sum(scores, axis=-1, keepdims=True) + 1e-20)
        for name, parts, groups in (
            ("balance_loss", 1, cfg.num_experts),
            ("row_balance_loss", rows, cfg.num_experts),
            ("device_balance_loss", 1, cfg.expert_groups),
        ):
            if coefficient := getattr(cfg, name):
                balance = _balance(chosen / cfg.top_k * valid[:, None], shares * valid[:, None], valid, parts, groups)
                self.add_loss(name, balance, count, coefficient)
        if cfg.z_loss:
            z = jnp.square(jax.nn.logsumexp(logits, axis=-1)) * valid
            self.add_loss("z_loss", jnp.sum(z), count, cfg.z_loss)


def _balance(
    chosen: Float[Array, "N X"], shares: Float[Array, "N X"], valid: Float[Array, " N"], parts: int, groups: int
) -> Float[Array, ""]:
    """Returns the sum over tokens of how uneven the load of their part is over groups of experts: 1 if it is even."""
    count = jnp.sum(valid.reshape(parts, -1), axis=1)
    # A part of nothing but padding would divide by 0, and its zero weight would not remove a NaN.
    safe = jnp.maximum(count, 1.0)[:, None]
    # Summed over a part's tokens and a group's experts: [parts, groups].
    load, importance = (x.reshape(parts, -1, groups, x.shape[1] // groups).sum((1, 3)) / safe for x in (chosen, shares))
    # Weighted by tokens so that microbatches and layers average.
    return jnp.sum(groups * jnp.sum(load * importance, axis=1) * count)
