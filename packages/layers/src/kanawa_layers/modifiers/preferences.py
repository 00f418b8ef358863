"""Modifiers that make a language model learn preferences, or labels of texts; data are for others to set."""

from collections.abc import Callable
from typing import Any, Literal

import kanawa as kn
from kanawa.contracts import CausalLM
from kanawa.errors import ConfigError

from kanawa_layers.losses.preference import sigmoid
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.embedding_loss import as_embedder
from kanawa_layers.models.labels import as_classifier
from kanawa_layers.models.preference_loss import DPO, KTO, ORPO, ReferencedLoss, SimPO
from kanawa_layers.models.reference import AdapterOff, FrozenModel, TokenLogprobs, without_adapters
from kanawa_layers.models.reward import RewardLoss, as_reward_model
from kanawa_layers.models.token_loss import TokenLoss
from kanawa_layers.modifiers.weights import train_reward_head

ReferenceKind = Literal["auto", "adapter-off", "frozen", "precomputed"]


def with_loss(cfg: kn.Config, loss: TokenLoss.Config, asker: str) -> kn.Config:
    """Returns `cfg` with the loss of its language model replaced, companions of the old one included."""
    model: Any = vars(cfg).get("model", cfg)
    if not isinstance(model, CausalLM.Config) or "loss" not in model.fields():
        message = f"{asker}: {type(model).__qualname__} is no causal language model with a slot `loss`"
        raise ConfigError(message)
    model.set(loss=loss)
    return cfg


class ReferencedModifier(kn.Modifier):
    """Base of losses with a reference: `auto` is the model without its adapters, else a frozen copy of it.

    `frozen` copies the first parameters, or takes those in the folder `source`. With `precomputed`, batches bring the
    reference's log-probabilities.
    """

    class Config(kn.Modifier.Config):
        beta: kn.Positive = 0.1
        reference: ReferenceKind = "auto"
        source: str = ""

        def check(self) -> list[str]:
            """Returns what is wrong with the source."""
            if self.source and self.reference in ("adapter-off", "precomputed"):
                return [f"source is set, and reference={self.reference} reads none; leave it out, or reference=frozen"]
            return []

    def placed(self, cfg: kn.Config, loss: ReferencedLoss.Config, asker: str) -> kn.Config:
        """Returns `cfg` with the loss and its reference."""
        own, model = self.config, vars(cfg).get("model", cfg)
        with_loss(cfg, loss, asker)
        plain: Any = without_adapters(model)
        kind = own.reference
        if kind == "auto":
            kind = "frozen" if own.source or plain == model else "adapter-off"
        if kind == "adapter-off":
            loss = loss.set(reference=AdapterOff.Config())
        elif kind == "frozen":
            plain.set(loss=TokenLogprobs.Config())
            loss = loss.set(reference=FrozenModel.Config(model=plain, source=own.source))
        return with_loss(cfg, loss, asker)


class DPOLoss(ReferencedModifier):
    """`dpo-loss`: direct preference optimisation; see `DPO` for the fields, and `ReferencedModifier`."""

    class Config(ReferencedModifier.Config):
        objective: Callable[..., Any] = sigmoid
        label_smoothing: kn.Partial = 0.0

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the loss; raises ConfigError where no causal model has a slot for one."""
        own = self.config
        loss = DPO.Config(beta=own.beta, objective=own.objective, label_smoothing=own.label_smoothing)
        return self.placed(cfg, loss, "dpo")


class KTOLoss(ReferencedModifier):
    """`kto-loss`: Kahneman-Tversky optimisation of single completions; see `KTO`, and `ReferencedModifier`."""

    class Config(ReferencedModifier.Config):
        good_weight: kn.Positive = 1.0
        bad_weight: kn.Positive = 1.0

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the loss; raises ConfigError where no causal model has a slot for one."""
        own = self.config
        loss = KTO.Config(beta=own.beta, good_weight=own.good_weight, bad_weight=own.bad_weight)
        return self.placed(cfg, loss, "kto")


class SimPOLoss(kn.Modifier):
    """`simpo-loss`: preferences by mean log-probabilities, without a reference; see `SimPO`."""

    class Config(kn.Modifier.Config):
        beta: kn.Positive = 2.0
        target: kn.NonNegative = 1.0

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the loss; raises ConfigError where no causal model has a slot for one."""
        return with_loss(cfg, SimPO.Config(beta=self.config.beta, target=self.config.target), "simpo")


class ORPOLoss(kn.Modifier):
    """`orpo-loss`: likelihood and odds ratio at once, without a reference; see `ORPO`."""

    class Config(kn.Modifier.Config):
        beta: kn.Positive = 0.1

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the loss; raises ConfigError where no causal model has a slot for one."""
        return with_loss(cfg, ORPO.Config(beta=self.config.beta), "orpo")


class LabelHeads(kn.Modifier):
    """`label-head`: a head of one logit a label in place of the model's, of texts or of tokens; see `LabelHead`."""

    class Config(kn.Modifier.Config):
        labels: tuple[str, ...] = kn.REQUIRED
        of_tokens: bool = False

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` as a classifier; raises ConfigError where there is no model of text."""
        as_classifier(vars(cfg).get("model", cfg), self.config.labels, of_tokens=self.config.of_tokens)
        return train_reward_head(cfg)


class EmbeddingLosses(kn.Modifier):
    """`embedding-loss`: the model learns vectors of texts instead of predicting tokens; see `EmbeddingLoss`."""

    class Config(kn.Modifier.Config):
        pooling: Literal["mean", "first", "last"] = "mean"
        scale: kn.Positive = 20.0

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the loss; raises ConfigError where there is no model of text."""
        as_embedder(vars(cfg).get("model", cfg), self.config.pooling, self.config.scale)
        return cfg


class RewardModelLoss(kn.Modifier):
    """`reward-loss`: a head of one number in place of the model's, and the Bradley-Terry loss; see `RewardLoss`."""

    class Config(kn.Modifier.Config):
        margin: kn.NonNegative = 0.0
        centre: kn.NonNegative = 0.0

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` as a reward model; raises ConfigError where there is no decoder to make one of."""
        own, model = self.config, vars(cfg).get("model", cfg)
        if not isinstance(model, DecoderLM.Config):
            message = f"reward-model: {type(model).__qualname__} is no decoder, whose head could give one number"
            raise ConfigError(message)
        as_reward_model(model)
        cfg = with_loss(cfg, RewardLoss.Config(margin=own.margin, centre=own.centre), "reward-model")
        return train_reward_head(cfg)
