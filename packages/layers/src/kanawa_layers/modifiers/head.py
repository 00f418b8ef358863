"""`tie-embeddings` and `logit-cap`: what a language model's head shares, and how it bounds its logits."""

import kanawa as kn

from kanawa_layers.models.head import Head, TiedHead, UntiedHead
from kanawa_layers.modifiers.fields import set_fields


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
