"""Masked diffusion in place of next tokens: attention that sees both sides, and the loss."""

from typing import Any

import kanawa as kn
from kanawa.contracts import CausalLM, SequenceMixer
from kanawa.errors import ConfigError

from kanawa_layers.attention.masks import Bidirectional, Window
from kanawa_layers.models.masked_diffusion import MaskedDiffusion
from kanawa_layers.modifiers.fields import edit_with


class MaskedDiffusionLoss(kn.Modifier):
    """`masked-diffusion-loss`: attention sees both sides, and the loss is that of masked diffusion.

    A window of n keys becomes n - 1 on either side. The vocabulary grows to hold `mask_id`, to a multiple of 128.
    """

    class Config(kn.Modifier.Config):
        mask_id: kn.Count = kn.REQUIRED

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with both changed; raises ConfigError for a model that isn't causal, or with a recurrence."""
        model: Any = vars(cfg).get("model", cfg)
        if not isinstance(model, CausalLM.Config) or "loss" not in model.fields():
            message = f"masked-diffusion: {type(model).__qualname__} is no causal language model with a slot `loss`"
            raise ConfigError(message)
        mask_id = self.config.mask_id
        if isinstance(model.loss, MaskedDiffusion.Config):
            model.loss.set(mask_id=mask_id)
            return cfg
        one_sided = sorted(
            {
                type(node).__qualname__.removesuffix(".Config")
                for _, node in model.walk()
                if isinstance(node, SequenceMixer.Config) and "mask" not in node.fields()
            }
        )
        if one_sided:
            message = f"masked-diffusion: {', '.join(one_sided)} sees earlier tokens only; take a model of attention"
            raise ConfigError(message)
        edit_with(cfg, SequenceMixer, "**", ("mask",), _see_both_sides)
        if mask_id >= model.vocab_size:
            model.set(vocab_size=-(-(mask_id + 1) // 128) * 128)
        model.set(loss=MaskedDiffusion.Config(mask_id=mask_id, loss=model.loss.clone()))
        return cfg


def _see_both_sides(node: Any) -> None:
    window = vars(node).get("window")
    if window is None:
        node.set(mask=Bidirectional.Config())
    else:
        node.set(mask=Window.Config(left=window - 1, right=window - 1), window=None)
