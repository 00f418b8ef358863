"""`tie-embeddings` and `logit-cap`: what a language model's head shares, and how it bounds its logits."""

import sashimono as sm

from sashimono_layers.models.head import Head, TiedHead, UntiedHead
from sashimono_layers.modifiers.node_fields import set_fields


class TieEmbeddings(sm.Modifier):
    """`tie-embeddings`: the head is the embedding table, or has a weight of its own where `tied` is false."""

    class Config(sm.Modifier.Config):
        tied: bool = True

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with every head replaced."""
        new = TiedHead.Config() if self.config.tied else UntiedHead.Config()
        new.set(foreign=new.foreign)
        sm.replace(cfg, target=Head, new=new)
        return cfg


class LogitCap(sm.Modifier):
    """`logit-cap`: logits become cap * tanh(logits / cap), as in Gemma 2; None undoes it."""

    class Config(sm.Modifier.Config):
        cap: float | None = 30.0

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with the cap set."""
        return set_fields(cfg, Head, "**", logit_cap=self.config.cap)
