"""`int8`, `fp8`, `weight-only`: other forms of the weights of any model's projections."""

from typing import Literal

import kanawa as kn
from kanawa.contracts import Weighted, WeightForm
from kanawa.errors import ConfigError

from kanawa_layers.tune.eight_bit_training import Fp8Training, Int8Training
from kanawa_layers.tune.weight_only import Int4Weights, Int8Weights


class Int8Modifier(kn.Modifier):
    """`int8`: trains with int8 matmuls; weights are stored as fp32."""

    class Config(kn.Modifier.Config):
        targets: tuple[str, ...] = ("**",)

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every weight under `targets` multiplied in int8."""
        return set_form(cfg, Int8Training.Config(), self.config.targets)


class Fp8Modifier(kn.Modifier):
    """`fp8`: trains with fp8 matmuls, e4m3 forward and e5m2 for gradients; weights are stored as fp32."""

    class Config(kn.Modifier.Config):
        targets: tuple[str, ...] = ("**",)

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every weight under `targets` multiplied in fp8."""
        return set_form(cfg, Fp8Training.Config(), self.config.targets)


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
    for where in targets:
        if not kn.replace(cfg, target=Weighted, edit=lambda node: _set_form(node, form), where=where):
            message = f"everything under {where!r} already has this form of weights: {type(form).__qualname__}"
            raise ConfigError(message)
    return cfg


def _set_form(node: kn.Config, form: WeightForm.Config) -> None:
    node.set(form=form)
