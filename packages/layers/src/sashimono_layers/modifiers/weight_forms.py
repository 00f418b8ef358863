"""`int8`, `fp8`, `weight-only`: other forms of the weights of any model's projections."""

from typing import Literal

import sashimono as sm
from sashimono.contracts import Weighted, WeightForm
from sashimono.errors import ConfigError

from sashimono_layers.tune.fp8_training import Fp8Training
from sashimono_layers.tune.int8_training import Int8Training
from sashimono_layers.tune.weight_only import Int4Weights, Int8Weights


class Int8Modifier(sm.Modifier):
    """`int8`: trains with int8 products; weights stay fp32 in storage."""

    class Config(sm.Modifier.Config):
        targets: tuple[str, ...] = ("**",)

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with every weight under `targets` multiplied in int8."""
        return set_form(cfg, Int8Training.Config(), self.config.targets)


class Fp8Modifier(sm.Modifier):
    """`fp8`: trains with fp8 products, e4m3 forward and e5m2 for gradients; weights stay fp32 in storage."""

    class Config(sm.Modifier.Config):
        targets: tuple[str, ...] = ("**",)

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with every weight under `targets` multiplied in fp8."""
        return set_form(cfg, Fp8Training.Config(), self.config.targets)


class WeightOnlyModifier(sm.Modifier):
    """`weight-only`: keeps weights in 8 or 4 bits for inference; a checkpoint goes through `from_plain`."""

    class Config(sm.Modifier.Config):
        bits: Literal[8, 4] = 8
        group_size: int | None = None
        targets: tuple[str, ...] = ("**",)

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with every weight under `targets` kept in integers; None leaves the format's group size."""
        own = self.config
        form = Int8Weights.Config() if own.bits == 8 else Int4Weights.Config()
        if own.group_size is not None:
            form.set(group_size=own.group_size)
        return set_form(cfg, form, own.targets)


def set_form(cfg: sm.Config, form: WeightForm.Config, targets: tuple[str, ...]) -> sm.Config:
    """Returns `cfg` with `form` in every weighted module under `targets`.

    Raises ConfigError where a target holds none.
    """
    for where in targets:
        if not sm.replace(cfg, target=Weighted, edit=lambda node: _put(node, form), where=where):
            message = f"everything under {where!r} already has this form of weights: {type(form).__qualname__}"
            raise ConfigError(message)
    return cfg


def _put(node: sm.Config, form: WeightForm.Config) -> None:
    node.set(form=form)
