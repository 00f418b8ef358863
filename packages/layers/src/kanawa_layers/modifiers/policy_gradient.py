"""Variants of GRPO, each after `grpo`: `--modify grpo:reward=exact-match --modify dapo`."""

import kanawa as kn
from kanawa.errors import ConfigError

from kanawa_layers.losses.policy import clipped_weight, per_sequence, per_token, sequence_ratio
from kanawa_layers.models.policy_loss import PolicyLoss


class DAPO(kn.Modifier):
    """`dapo`: clip-higher, token-level loss, dynamic sampling, a penalty of overlong rollouts (arXiv:2503.14476).

    A group whose rewards are equal tries up to `attempts` prompts. `overlong_tokens` is the paper's L_cache, the last
    so many of `rollouts.new_tokens`, None: a fifth of them. Nothing holds the policy near a reference.
    """

    class Config(kn.Modifier.Config):
        clip_low: kn.Fraction = 0.2
        clip_high: kn.Positive = 0.28
        attempts: kn.Size = 4
        overlong_tokens: kn.Count | None = None

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with loss and rollouts changed; raises ConfigError where `grpo` hasn't been applied."""
        own = self.config
        _edit(cfg, "dapo", aggregation=per_token, clip_low=own.clip_low, clip_high=own.clip_high, kl=0.0)
        rollouts = vars(cfg).get("rollouts")
        if isinstance(rollouts, kn.Config):
            fields = vars(rollouts)
            cache = fields["new_tokens"] // 5 if own.overlong_tokens is None else own.overlong_tokens
            rollouts.set(attempts=own.attempts, overlong_tokens=cache, reference=False)
        return cfg


class GSPO(kn.Modifier):
    """`gspo`: importance ratios and clips of whole sequences (arXiv:2507.18071; the bounds are of its section 5.1)."""

    class Config(kn.Modifier.Config):
        clip_low: kn.Fraction = 3e-4
        clip_high: kn.Positive = 4e-4

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the objective changed; raises ConfigError where `grpo` hasn't been applied."""
        own = self.config
        fields = {"objective": sequence_ratio, "aggregation": per_sequence}
        return _edit(cfg, "gspo", **fields, clip_low=own.clip_low, clip_high=own.clip_high)


class CISPO(kn.Modifier):
    """`cispo`: a clipped importance weight without gradient in place of PPO's clip, over tokens (arXiv:2506.13585).

    As in the paper nothing bounds the weight below (`clip_low` 1). The upper bound is that of ScaleRL, 1 + 4
    (arXiv:2510.13786), since the paper gives none.
    """

    class Config(kn.Modifier.Config):
        clip_low: kn.Fraction = 1.0
        clip_high: kn.Positive = 4.0

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the objective changed; raises ConfigError where `grpo` hasn't been applied."""
        own = self.config
        fields = {"objective": clipped_weight, "aggregation": per_token}
        return _edit(cfg, "cispo", **fields, clip_low=own.clip_low, clip_high=own.clip_high)


def _edit(cfg: kn.Config, name: str, **fields: object) -> kn.Config:
    losses = [node for _, node in cfg.walk() if isinstance(node, PolicyLoss.Config)]
    if not losses:
        message = f"{name}: nothing here learns from rewards yet; put --modify grpo:reward=NAME before it"
        raise ConfigError(message)
    for loss in losses:
        loss.set(**fields)
    return cfg
