"""`mup`: the maximal update parametrisation, for any experiment with a language model."""

import kanawa as kn
from kanawa.errors import ConfigError

from kanawa_runtime.learn.learner_slots import learner_of
from kanawa_runtime.learn.width_transfer import WidthTransfer


class AddMuP(kn.Modifier):
    """Scales rates and logits by width, so that rates found at `base_width` hold: `--modify mup:base_width=256`.

    Set `learner.schedule.peak` to the best rate at the base width, and the model's width before this modifier. With
    `base_head_dim` scores of attention are scaled by sqrt(base_head_dim) / head_dim, for heads that grow with width.
    """

    class Config(kn.Modifier.Config):
        base_width: kn.Size = kn.REQUIRED
        base_head_dim: kn.Size | None = None

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the learner's `width_transfer`, and its logits' scale multiplied."""
        own = self.config
        learner_of(cfg, "width_transfer").set(width_transfer=WidthTransfer.Config(base_width=own.base_width))
        width = getattr(cfg.model, "input_dim", None)
        heads = [node for _, node in cfg.model.walk() if "logit_scale" in node.fields()]
        if not isinstance(width, int) or not heads:
            message = (
                "muP needs the width of the model and the scale of its logits, and "
                f"{type(cfg.model).__qualname__} lacks {'input_dim' if heads else 'a head with logit_scale'}"
            )
            raise ConfigError(message)
        for head in heads:
            head.set(logit_scale=head.logit_scale * own.base_width / width)
        if own.base_head_dim is not None:
            self._scale_scores(cfg.model, width, own.base_head_dim)
        return cfg

    def _scale_scores(self, model: kn.Config, width: int, base: int) -> None:
        for _, node in model.walk():
            if {"scale", "num_heads", "head_dim"} <= set(node.fields()):
                head_dim = node.head_dim or width // node.num_heads
                # At the base this is the usual head_dim ** -0.5.
                node.set(scale=base**0.5 / head_dim)
