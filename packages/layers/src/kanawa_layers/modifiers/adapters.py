"""`lora`, `dora`, `qlora`: adapters beside the projections of any model; where there is a learner, only they train."""

import kanawa as kn
from kanawa.contracts import Adapter, ParameterRule, Weighted
from kanawa.errors import ConfigError

from kanawa_layers.modifiers.weight_forms import set_form
from kanawa_layers.tune.dora import DoRA
from kanawa_layers.tune.lora import LoRA
from kanawa_layers.tune.weight_only import NF4Weights

#: Parameters of adapters, whatever they change and wherever they are.
_ADAPTERS = "**.adapter.**"


class LoRAModifier(kn.Modifier):
    """`lora`: gives every projection under `targets` a low-rank change, and freezes all else."""

    class Config(kn.Modifier.Config):
        rank: int = 8
        alpha: float = 16.0
        targets: tuple[str, ...] = ("**",)

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with adapters, and with the learner's rules where there is one."""
        own = self.config
        return adapt(cfg, LoRA.Config(rank=own.rank, alpha=own.alpha), own.targets)


class DoRAModifier(kn.Modifier):
    """`dora`: as `lora`, with a trained magnitude for each output column."""

    class Config(kn.Modifier.Config):
        rank: int = 8
        alpha: float = 16.0
        targets: tuple[str, ...] = ("**",)

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with adapters, and with the learner's rules where there is one."""
        own = self.config
        return adapt(cfg, DoRA.Config(rank=own.rank, alpha=own.alpha), own.targets)


class QLoRAModifier(kn.Modifier):
    """`qlora`: as `lora`, over weights kept in 4-bit normal floats (Dettmers et al. 2023, arXiv:2305.14314)."""

    class Config(kn.Modifier.Config):
        rank: int = 8
        alpha: float = 16.0
        group_size: int = 64
        targets: tuple[str, ...] = ("**",)

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with quantised weights, adapters, and the learner's rules where there is one."""
        own = self.config
        set_form(cfg, NF4Weights.Config(group_size=own.group_size), own.targets)
        return adapt(cfg, LoRA.Config(rank=own.rank, alpha=own.alpha), own.targets)


def adapt(cfg: kn.Config, adapter: Adapter.Config, targets: tuple[str, ...]) -> kn.Config:
    """Returns `cfg` with `adapter` in the slot of every projection under `targets`; all else is frozen.

    Raises ConfigError where a target holds no projection with such a slot.
    """

    def put(node: kn.Config) -> None:
        if "adapter" in node.fields():
            node.set(adapter=adapter)

    for where in targets:
        if not kn.replace(cfg, target=Weighted, edit=put, where=where):
            message = f"nothing under {where!r} has a slot `adapter` that isn't filled so already"
            raise ConfigError(message)
    learner = vars(cfg).get("learner")
    if isinstance(learner, kn.Config) and "rules" in learner.fields():
        only = (ParameterRule(where="**", frozen=True), ParameterRule(where=_ADAPTERS))
        learner.set(rules=(*learner.rules, *only))
    return cfg
