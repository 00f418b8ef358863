"""`policy-loss`: a language model learns from rewarded rollouts of its own instead of fixed targets."""

import kanawa as kn

from kanawa_layers.losses.policy import per_row, per_sequence
from kanawa_layers.models.policy_loss import PolicyLoss
from kanawa_layers.models.token_loss import TokenLoss


class ChoosePolicyLoss(kn.Modifier):
    """Puts the clipped objective into the loss slot of every language model; see `PolicyLoss` for the fields.

    With `dr` rows are summed as in Dr. GRPO; `--set model.loss.aggregation=…` sets any other function.
    """

    class Config(kn.Modifier.Config):
        clip_low: kn.Partial = 0.2
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
