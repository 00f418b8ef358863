"""`z-loss` and `label-smoothing`: terms that a language model's training loss adds to the likelihood."""

import kanawa as kn

from kanawa_layers.models.cross_entropy import CrossEntropy
from kanawa_layers.modifiers.fields import set_fields


class ZLoss(kn.Modifier):
    """`z-loss`: penalises the squared log of the softmax's normaliser (PaLM, arXiv:2204.02311, section 5)."""

    class Config(kn.Modifier.Config):
        coefficient: kn.NonNegative = 1e-4

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
