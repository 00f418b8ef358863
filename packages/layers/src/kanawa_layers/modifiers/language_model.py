"""Modifiers of language models: their vocabulary, head and loss, and distillation."""

from pathlib import Path
from typing import Any

import kanawa as kn
from kanawa.config import FROM_PARENT
from kanawa.contracts import CausalLM, Model, without_companions
from kanawa.errors import ConfigError
from kanawa.plugins import component

from kanawa_layers.losses.policy import per_row, per_sequence
from kanawa_layers.models.distillation import Distillation, HiddenStates
from kanawa_layers.models.head import Head, TiedHead, UntiedHead
from kanawa_layers.models.policy_loss import PolicyLoss
from kanawa_layers.models.reference import FrozenModel
from kanawa_layers.models.token_loss import CrossEntropy, TokenLoss
from kanawa_layers.modifiers.fields import set_fields
from kanawa_layers.modifiers.pretrained_parts import model_in, named


class VocabularySize(kn.Modifier):
    """Sets `vocab_size` of every model, from which embeddings and heads derive theirs.

    `multiple` rounds up, since sizes that divide by 128 or so are faster and shard evenly.
    """

    class Config(kn.Modifier.Config):
        size: kn.Size = kn.REQUIRED
        multiple: kn.Size = 1

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the size set."""
        own, reached = self.config, []
        size = -(-own.size // own.multiple) * own.multiple

        def edit(node: kn.Config) -> None:
            # Heads and embeddings derive it from their model; set on them as well, it could differ.
            if "vocab_size" in node.fields() and vars(node)["vocab_size"] is not FROM_PARENT:
                node.set(vocab_size=size)
                reached.append(node)

        kn.replace(cfg, target=kn.Module, edit=edit)
        if not reached:
            kinds = [type(node).__qualname__ for _, node in cfg.walk() if isinstance(node, Model.Config)]
            kind = ", ".join(kinds) or type(cfg).__qualname__
            message = f"vocab: nothing under '**' has a vocab_size of its own: {kind} is no language model"
            raise ConfigError(message)
        return cfg


class TieEmbeddings(kn.Modifier):
    """`tie-embeddings`: the head is the embedding table, or has a weight of its own where `tied` is false."""

    class Config(kn.Modifier.Config):
        tied: bool = True

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every head replaced."""
        new = TiedHead.Config() if self.config.tied else UntiedHead.Config()
        kn.replace(cfg, target=Head, new=new)
        return cfg


class LogitCap(kn.Modifier):
    """`logit-cap`: logits become cap * tanh(logits / cap), as in Gemma 2; None removes it."""

    class Config(kn.Modifier.Config):
        cap: kn.Positive | None = 30.0

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the cap set."""
        return set_fields(cfg, Head, "**", logit_cap=self.config.cap)


class ZLoss(kn.Modifier):
    """`z-loss`: penalises the squared log of the softmax's normaliser (PaLM, arXiv:2204.02311, section 5)."""

    class Config(kn.Modifier.Config):
        coefficient: kn.Strength = 1e-4

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the coefficient set on every cross entropy."""
        return set_fields(cfg, CrossEntropy, "**", z_loss=self.config.coefficient)


class LabelSmoothing(kn.Modifier):
    """`label-smoothing`: spreads `amount` of each target's probability evenly (Szegedy et al. 2016)."""

    class Config(kn.Modifier.Config):
        amount: kn.Partial = 0.1

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the amount set on every cross entropy."""
        return set_fields(cfg, CrossEntropy, "**", label_smoothing=self.config.amount)


class ChoosePolicyLoss(kn.Modifier):
    """Puts the clipped objective into the loss slot of every language model; see `PolicyLoss` for the fields.

    With `dr` rows are summed as in Dr. GRPO; `--set model.loss.aggregation=…` sets any other function.
    """

    class Config(kn.Modifier.Config):
        clip_low: kn.Fraction = 0.2
        clip_high: kn.Positive = 0.2
        kl: kn.NonNegative = 0.0
        truncation: kn.Positive | None = None
        dr: bool = False

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the loss replaced; raises RewriteError where no model has a slot for one."""
        own = self.config
        loss = PolicyLoss.Config(
            clip_low=own.clip_low,
            clip_high=own.clip_high,
            kl=own.kl,
            truncation=own.truncation,
            aggregation=per_row if own.dr else per_sequence,
        )
        kn.replace(cfg, target=TokenLoss, new=loss)
        return cfg


class DistillModifier(kn.Modifier):
    """`distill`: the model learns from a frozen teacher, a run or a folder of another library, with the same tokens.

    `mix`, `temperature` and `data_weight` are those of `Distillation`. Where rollouts are set, as by `grpo`, it learns
    on what it wrote itself. A model's name instead of a folder is a teacher with the student's own first parameters.
    """

    class Config(kn.Modifier.Config):
        teacher: str = kn.REQUIRED
        mix: kn.Fraction = 0.0
        coefficient: kn.Strength = 1.0
        temperature: kn.Positive = 1.0
        data_weight: kn.NonNegative = 1.0

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the loss; raises ConfigError where student or teacher is no such language model."""
        own, student = self.config, vars(cfg).get("model")
        if not isinstance(student, CausalLM.Config) or "loss" not in student.fields():
            message = f"distill: {type(cfg).__qualname__} has no causal language model at `model`, but {named(student)}"
            raise ConfigError(message)
        teacher, source = _teacher(own.teacher)
        if teacher.vocab_size != student.vocab_size:
            message = (
                f"distill: teacher.vocab_size is {teacher.vocab_size} ({own.teacher}), but the student's is "
                f"{student.vocab_size}: they must be the same, and so must the tokenizers"
            )
            raise ConfigError(message)
        loss = Distillation.Config(
            teacher=FrozenModel.Config(model=teacher.set(loss=HiddenStates.Config()), source=source),
            mix=own.mix, coefficient=own.coefficient, temperature=own.temperature, data_weight=own.data_weight,
        )  # fmt: skip
        student.set(loss=loss)
        return cfg


def _teacher(name: str) -> tuple[Any, str]:
    """Returns the config of a teacher and the folder with its parameters; raises ConfigError."""
    model: Any
    source = ""
    if Path(name).is_dir() or "/" in name:
        model, source = model_in(name, "distill")
    else:
        model = component("models", name)()
    if not isinstance(model, CausalLM.Config) or "loss" not in model.fields():
        message = f"distill: {name} holds no causal language model that could teach"
        raise ConfigError(message)
    return without_companions(model), source
