"""Multi-token prediction: modules after the stack predict tokens further ahead, in training (DeepSeek-V3)."""

from typing import Any

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Batch, Block, CausalLM, Norm, Sequences
from kanawa.errors import ConfigError
from kanawa.kernels.softmax_cross_entropy import softmax_cross_entropy

from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.models.head import Head
from kanawa_layers.models.token_loss import CrossEntropy, TokenLoss


class PredictionDepth(kn.Module):
    """block(join([token_norm(embedded); state_norm(states)])): the states that predict one token further ahead."""

    state_norm: Norm
    token_norm: Norm
    join: Linear
    block: Block
    norm: Norm

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        state_norm: Norm.Config = RMSNorm.Config()
        token_norm: Norm.Config = RMSNorm.Config()
        join: Linear.Config = Linear.Config()
        block: Block.Config = kn.REQUIRED
        norm: Norm.Config = RMSNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "state_norm": "hnorm",
                "token_norm": "enorm",
                "join": "eh_proj",
                "block": "",
                "norm": "shared_head.norm",
            }
        )

    def setup(self) -> None:
        """Declares norms, `join` [2 embed, embed], and the block."""
        cfg, width = self.config, self.config.input_dim
        for name in ("state_norm", "token_norm", "block", "norm"):
            self.add_child(name, getattr(cfg, name), input_dim=width)
        shapes: dict[str, Any] = {"input_shape": (2 * width,), "output_shape": (width,)}
        self.add_child("join", cfg.join, axes=("mlp", "embed"), **shapes)

    def forward(
        self, states: Float[Array, "B T E"], embedded: Float[Array, "B T E"], sequences: Sequences
    ) -> tuple[Float[Array, "B T E"], Float[Array, "B T E"]]:
        """Returns the next depth's states, and those after the norm, which the head reads."""
        both = jnp.concatenate([self.token_norm(embedded), self.state_norm(states)], axis=-1)
        states, _ = self.block(self.join(both), sequences)
        return states, self.norm(states)


class MultiTokenPrediction(TokenLoss):
    """The loss `main`, and in training the mean cross entropy of tokens 2, 3, … ahead, times `strength`.

    Depth k joins the states of depth k - 1 at token i with the embedding of token i + k; its block and the model's own
    head predict token i + k + 1 (DeepSeek-V3, arXiv:2412.19437, section 2.2, equations 21 to 25). Depth 0 is the
    model's normalised last stream [batch, length, embed]. Targets beyond a row or a segment have no weight. Outside of
    training it is `main` alone, and its parameters are idle.
    """

    main: TokenLoss
    depths: tuple[PredictionDepth, ...]

    class Config(TokenLoss.Config):
        main: TokenLoss.Config = CrossEntropy.Config()
        depths: tuple[PredictionDepth.Config, ...] = kn.REQUIRED
        input_dim: kn.Size = kn.REQUIRED
        strength: kn.Strength = 0.3
        foreign: kn.foreign.Names = kn.foreign.Names(children={"main": "", "depths": "mtp.{}"})

        def check(self) -> list[str]:
            """Returns what is wrong with the terms."""
            problems = [] if self.depths else ["depths is empty, expected at least one"]
            if self.coefficient != 1.0:
                problems.append("coefficient would be ignored; set main.coefficient, and strength for the tokens ahead")
            return problems

    def setup(self) -> None:
        """Declares the main loss, and the modules of each depth."""
        self.add_child("main", self.config.main)
        for i, depth in enumerate(self.config.depths):
            self.add_child(f"depths[{i}]", depth, input_dim=self.config.input_dim)

    def forward(self, x: Float[Array, "B T E"], head: Head, batch: Batch) -> None:
        """Adds the main loss, and in training a term `tokens_ahead_<n>` for each further token."""
        self.main(x, head, batch)
        if not self.train:
            return
        embedding: Embedding = self.shared_module("embedding")
        sequences = Sequences(positions=batch.positions, segment_ids=batch.segment_ids)
        length, strength = x.shape[1], self.config.strength / len(self.depths)
        for ahead, depth in enumerate(self.depths, 1):
            # Position i of `target_ids` is token i + 1.
            with kn.call_name(f"ahead_{ahead}"):
                embedded = embedding(jnp.roll(batch.target_ids, 1 - ahead, axis=1))
            x, normed = depth(x, embedded, sequences)
            exists = jnp.broadcast_to(jnp.arange(length)[None] < length - ahead, batch.target_ids.shape)
            if batch.segment_ids is not None:
                exists &= batch.segment_ids == jnp.roll(batch.segment_ids, -ahead, axis=1)
            weights = jnp.where(exists, jnp.roll(batch.loss_weights, -ahead, axis=1), 0.0)
            total, count, _ = softmax_cross_entropy(
                head.scaled(normed),
                head.weight(),
                jnp.roll(batch.target_ids, -ahead, axis=1),
                weights,
                tied=head.tied,
                logit_cap=head.config.logit_cap,
            )
            self.add_loss(f"tokens_ahead_{ahead + 1}", total, count, strength)

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns the FLOPs of the depths, and of the head for each."""
        table = self.shared_module("embedding").config
        head = 2.0 * table.vocab_size * table.output_dim
        return float(super().flops_per_token(context_length) + len(self.depths) * head)


class PredictAhead(kn.Modifier):
    """`multi-token`: trains language models to predict `depth` further tokens; see `MultiTokenPrediction`.

    Each depth has a copy of the last block of the model's stack.
    """

    class Config(kn.Modifier.Config):
        depth: kn.Size = 1
        strength: kn.Strength = 0.3

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the loss wrapped; raises ConfigError for a model or a loss that it doesn't support."""
        own = self.config

        def edit(model: Any) -> None:
            if not {"loss", "stack"} <= set(model.fields()) or not issubclass(Batch, model.loss._target.batch):
                message = f"multi-token: {type(model).__qualname__} has no loss of token rows to add further tokens to"
                raise ConfigError(message)
            path, block = [
                (path, node) for path, node in model.stack.walk() if node._target and issubclass(node._target, Block)
            ][-1]
            width = (
                model.stack.derived(input_dim=model.input_dim).build(name="stack").built_config().get(path).input_dim
            )
            if width != model.input_dim:
                message = (
                    f"multi-token copies the block {path}, whose width is {width} where the model's is "
                    f"{model.input_dim}: apply it before what widens the stack"
                )
                raise ConfigError(message)
            depth = PredictionDepth.Config(block=block.clone(), norm=model.norm.clone())
            depths = (depth,) * own.depth
            model.set(
                loss=MultiTokenPrediction.Config(
                    main=model.loss, depths=depths, input_dim=model.input_dim, strength=own.strength
                )
            )

        kn.replace(cfg, target=CausalLM, edit=edit)
        return cfg
