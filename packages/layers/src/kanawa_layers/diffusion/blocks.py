"""The transformer block of DiT: branches that a condition modulates (Peebles and Xie 2022, arXiv:2212.09748)."""

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import CacheState, Norm, Sequences

from kanawa_layers.basic.norms import UnitLayerNorm
from kanawa_layers.diffusion.modulation import AdaptiveZero, Modulation, Modulations, condition_of
from kanawa_layers.stack.residual_blocks import RESIDUAL_NAMES, ResidualBlock


class ModulatedBlock(ResidualBlock):
    """x + gate * branch(norm(x) * (1 + scale) + shift), twice; gates, scales and shifts are of `Sequences.condition`.

    Emits what other blocks of two branches do. Six vectors: shift, scale and gate of attention, then of feed-forward.
    """

    attention_norm: Norm
    feed_forward_norm: Norm
    modulation: Modulations

    class Config(ResidualBlock.Config):
        attention_norm: Norm.Config = UnitLayerNorm.Config()
        feed_forward_norm: Norm.Config = UnitLayerNorm.Config()
        modulation: Modulations.Config = AdaptiveZero.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "attention": "attn1",
                "feed_forward": "ff",
                "attention_norm": "norm1",
                "feed_forward_norm": "norm3",
                "modulation": "norm1",
                **RESIDUAL_NAMES,
            }
        )

    def setup(self) -> None:
        """Declares every slot; the modulation makes six vectors."""
        cfg = self.config
        for name in ("attention", "feed_forward", "attention_residual", "feed_forward_residual"):
            self.add_child(name, getattr(cfg, name), input_dim=cfg.input_dim)
        for name in ("attention_norm", "feed_forward_norm"):
            self.add_child(name, getattr(cfg, name), input_dim=cfg.input_dim)
        self.add_child("modulation", cfg.modulation, input_dim=cfg.input_dim, count=6)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the residual stream after both branches, and the attention's cache."""
        vectors = self.modulation(condition_of(self, sequences))
        attention, feed_forward = Modulation(*vectors[:3]), Modulation(*vectors[3:])
        y, cache = self.attention(attention.read(self.attention_norm(x)), sequences, cache)
        x = self.attention_residual(x, attention.add(self.emit("attention_output", y)))
        y = self.feed_forward(feed_forward.read(self.feed_forward_norm(x)), sequences)
        x = self.feed_forward_residual(x, feed_forward.add(self.emit("feed_forward_output", y)))
        return self.emit("residual_stream", x), cache
