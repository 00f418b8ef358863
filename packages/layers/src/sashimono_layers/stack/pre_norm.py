"""Pre-norm block: x + attention(norm(x)), then x + feed_forward(norm(x)), as in Llama."""

import sashimono as sm
from jaxtyping import Array, Float
from sashimono.contracts import Attention, Block, CacheState, FeedForward, Norm, Sequences

from sashimono_layers.basic.dropout import Dropout
from sashimono_layers.basic.rms_norm import RMSNorm


class PreNormBlock(Block):
    """Two residual branches, each normalised at its input, with optional dropout on its output."""

    class Config(Block.Config):
        attention: Attention.Config = sm.REQUIRED
        feed_forward: FeedForward.Config = sm.REQUIRED
        attention_norm: Norm.Config = RMSNorm.Config()
        feed_forward_norm: Norm.Config = RMSNorm.Config()
        dropout: Dropout.Config | None = None

    def setup(self) -> None:
        """Declares both branches."""
        cfg = self.config
        for name in ("attention", "feed_forward", "attention_norm", "feed_forward_norm"):
            self.add_child(name, getattr(cfg, name), input_dim=cfg.input_dim)
        self.add_child("dropout", cfg.dropout)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the residual stream after both branches, and the attention's cache."""
        mixed, cache = self.attention(self.attention_norm(x), sequences, cache)
        x = x + self._dropped(mixed, "attention")
        transformed = self.feed_forward(self.feed_forward_norm(x), sequences)
        return x + self._dropped(transformed, "feed_forward"), cache

    def _dropped(self, x: Float[Array, "B T E"], branch: str) -> Float[Array, "B T E"]:
        if self.dropout is None:
            return x
        with sm.call_name(branch):
            return self.dropout(x)

    @sm.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, sm.ParamSpec]:
        """Returns the layout of the attention's cache."""
        return self.attention.cache_spec(rows, length, dtype)
