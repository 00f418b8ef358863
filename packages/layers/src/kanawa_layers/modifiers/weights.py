"""Other forms of any model's weights, for training in few bits and for storage, and adapters beside them.

The learner, if any, trains only adapters. `lora-pool` adds empty slots for many of them, for serving.
"""

import math
from typing import ClassVar, Literal

import kanawa as kn
from kanawa.contracts import Adapter, ParameterRule, PrecisionConfig, Weighted, WeightForm, companions_apart
from kanawa.errors import ConfigError

from kanawa_layers.models.head import LabelHead
from kanawa_layers.models.reward import RewardHead
from kanawa_layers.stack.chained import ChainedStack
from kanawa_layers.stack.repeated import RepeatedStack
from kanawa_layers.tune.eight_bit_training import Fp8Training, Int8Training
from kanawa_layers.tune.lora import DoRA, LoRA
from kanawa_layers.tune.lora_pool import LoRAPool
from kanawa_layers.tune.low_precision import RECIPES, LowPrecision, RecipeName
from kanawa_layers.tune.weight_only import FrozenFloat, Int4Weights, Int8Weights, NF4Weights


class EightBitTraining(kn.Modifier):
    """Trains with eight-bit matmuls of every weight under `targets`; weights are stored as fp32."""

    class Config(kn.Modifier.Config):
        targets: tuple[str, ...] = ("**",)

    form: ClassVar[type[Int8Training] | type[Fp8Training]]

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every weight under `targets` multiplied in eight bits."""
        return set_form(cfg, self.form.Config(), self.config.targets)


class Int8Modifier(EightBitTraining):
    """`int8`: trains with int8 matmuls; weights are stored as fp32."""

    form = Int8Training


class Fp8Modifier(EightBitTraining):
    """`fp8`: trains with fp8 matmuls, e4m3 forward and e5m2 for gradients; weights are stored as fp32."""

    form = Fp8Training


class WeightOnlyModifier(kn.Modifier):
    """`weight-only`: stores weights in 8 or 4 bits for inference; convert a checkpoint with `from_plain`."""

    class Config(kn.Modifier.Config):
        bits: Literal[8, 4] = 8
        group_size: kn.Size | None = None
        targets: tuple[str, ...] = ("**",)

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every weight under `targets` stored as integers; None is the format's group size."""
        own = self.config
        form = Int8Weights.Config() if own.bits == 8 else Int4Weights.Config()
        if own.group_size is not None:
            form.set(group_size=own.group_size)
        return set_form(cfg, form, own.targets)


def set_form(cfg: kn.Config, form: WeightForm.Config, targets: tuple[str, ...]) -> kn.Config:
    """Returns `cfg` with `form` in every weighted module under `targets`.

    Raises ConfigError where a target has none.
    """
    with companions_apart(cfg):
        for where in targets:
            if not kn.replace(cfg, target=Weighted, edit=lambda node: node.set(form=form), where=where):
                message = f"everything under {where!r} already has this form of weights: {type(form).__qualname__}"
                raise ConfigError(message)
    return cfg


class LowPrecisionModifier(kn.Modifier):
    """`low-precision`: trains with matmuls in fp8 by tensor, row or block, MXFP8 or NVFP4; see `RECIPES`.

    The last layers of a model, `plain_last` of all, by default what the recipe says, stay in the compute dtype: the
    stack becomes a chain, and parameters of its layers get other paths.
    """

    class Config(kn.Modifier.Config):
        recipe: RecipeName = "mxfp8"
        plain_last: kn.Fraction | None = None
        targets: tuple[str, ...] = ("**.stack.**",)

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every weight under `targets` multiplied so; raises ConfigError where none is."""
        own = self.config
        share = RECIPES[own.recipe].plain_last if own.plain_last is None else own.plain_last
        set_form(cfg, LowPrecision.Config(recipe=own.recipe), own.targets)
        if share:
            with companions_apart(cfg):
                _keep_last(cfg, share)
        return cfg


def _keep_last(cfg: kn.Config, share: float) -> None:
    """Cuts the last stack of layers in two, the second one with plain weights."""
    stacks = [(path, node) for path, node in cfg.walk() if isinstance(node, RepeatedStack.Config)]
    total = sum(stack.num_layers for _, stack in stacks)
    last = math.ceil(share * total)
    path, stack = stacks[-1] if stacks else ("", None)
    if stack is None or last >= stack.num_layers:
        found = "there is none" if stack is None else f"the last one, {path}, has {stack.num_layers} of {total} layers"
        message = (
            f"low-precision: the last {share:.0%} of layers would stay plain, which needs a longer RepeatedStack: "
        )
        raise ConfigError(message + found + "; set plain_last=0")
    first, rest = stack.clone().set(num_layers=stack.num_layers - last), stack.clone().set(num_layers=last)
    kn.replace(rest, target=Weighted, edit=lambda node: node.set(form=None))
    cfg.set_path(path, ChainedStack.Config(stacks=(first, rest), input_dim=stack.input_dim))


#: Parameters of all adapters.
_ADAPTERS = "**.adapter.**"


class LowRank(kn.Modifier):
    """Adds a low-rank adapter to every projection under `targets`, and freezes all else.

    A stack's frozen projections are stored in the compute dtype, as released checkpoints are; `base=float32` keeps
    them in float32.
    """

    class Config(kn.Modifier.Config):
        rank: kn.Size = 8
        alpha: kn.Strength = 16.0
        targets: tuple[str, ...] = ("**",)
        base: Literal["compute", "float32"] = "compute"

    #: The kind of change.
    adapter: ClassVar[type[LoRA] | type[DoRA]]

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with adapters, and with the learner's rules where there is one."""
        own = self.config
        cfg = adapt(cfg, self.adapter.Config(rank=own.rank, alpha=own.alpha), own.targets)
        return cfg if own.base == "float32" else narrow_frozen(cfg)


class LoRAModifier(LowRank):
    """`lora`: adds a low-rank adapter to every projection under `targets`, and freezes all else."""

    adapter = LoRA


class DoRAModifier(LowRank):
    """`dora`: as `lora`, with a trained magnitude for each output column."""

    adapter = DoRA


class QLoRAModifier(LowRank):
    """`qlora`: as `lora`, over weights stored as 4-bit normal floats (Dettmers et al. 2023, arXiv:2305.14314)."""

    adapter = LoRA

    class Config(LowRank.Config):
        group_size: kn.Size = 64

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with quantised weights, adapters, and the learner's rules where there is one."""
        own = self.config
        set_form(cfg, NF4Weights.Config(group_size=own.group_size), own.targets)
        return super().__call__(cfg)


class LoRAPoolModifier(kn.Modifier):
    """`lora-pool`: `slots` empty LoRA adapters of at most `rank` for every projection of a stack, for serving."""

    class Config(kn.Modifier.Config):
        slots: kn.Size = 4
        rank: kn.Size = 16
        targets: tuple[str, ...] = ("**.stack.**",)

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with empty adapter pools; raises ConfigError where a projection has an adapter already."""
        own = self.config

        def set_adapter(node: kn.Config) -> None:
            if "adapter" not in node.fields():
                return
            if node.adapter is not None:
                message = "a projection has an adapter of its own: merge it first, or serve the model it was trained on"
                raise ConfigError(message)
            node.set(adapter=LoRAPool.Config(slots=own.slots, rank=own.rank))

        for where in own.targets:
            if not kn.replace(cfg, target=Weighted, edit=set_adapter, where=where):
                message = f"nothing under {where!r} has a slot `adapter`"
                raise ConfigError(message)
        return cfg


def adapt(cfg: kn.Config, adapter: Adapter.Config, targets: tuple[str, ...]) -> kn.Config:
    """Returns `cfg` with `adapter` in the slot of every projection under `targets`; all else is frozen.

    Raises ConfigError where a target holds no projection with such a slot.
    """

    def set_adapter(node: kn.Config) -> None:
        if "adapter" in node.fields():
            node.set(adapter=adapter)

    with companions_apart(cfg):
        for where in targets:
            if not kn.replace(cfg, target=Weighted, edit=set_adapter, where=where):
                message = f"nothing under {where!r} has a slot `adapter` without this adapter"
                raise ConfigError(message)
    return train_adapters_only(cfg)


def narrow_frozen(cfg: kn.Config) -> kn.Config:
    """Returns `cfg` with the plain projections of its stacks stored in the compute dtype, where that is narrower."""
    precision = vars(cfg).get("precision")
    if not isinstance(precision, PrecisionConfig) or precision.compute == "float32":
        return cfg

    def narrow(node: kn.Config) -> None:
        if node.form is None:
            node.set(form=FrozenFloat.Config(dtype=precision.compute))

    with companions_apart(cfg):
        kn.replace(cfg, target=Weighted, edit=narrow, where="**.stack.**", allow_none=True)
    return cfg


def train_adapters_only(cfg: kn.Config) -> kn.Config:
    """Returns `cfg`; its learner, if it has one with rules, trains only parameters of adapters."""
    learner = vars(cfg).get("learner")
    if isinstance(learner, kn.Config) and "rules" in learner.fields():
        # The last rule that matches a parameter wins, so these come after a user's own.
        only = (ParameterRule(where="**", frozen=True), ParameterRule(where=_ADAPTERS))
        learner.set(rules=(*learner.rules, *only))
    return train_reward_head(cfg)


def train_reward_head(cfg: kn.Config) -> kn.Config:
    """Returns `cfg`; a head that is new, of a reward or of labels, is trained beside adapters that freeze all else."""
    learner, model = vars(cfg).get("learner"), vars(cfg).get("model")
    if not isinstance(learner, kn.Config) or not isinstance(model, kn.Config):
        return cfg
    is_new = isinstance(vars(model).get("head"), RewardHead.Config | LabelHead.Config)
    if is_new and "rules" in learner.fields() and learner.rules:
        learner.set(rules=(*learner.rules, ParameterRule(where="head.**")))
    return cfg
