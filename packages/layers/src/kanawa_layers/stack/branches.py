"""What residual blocks share: branches that read the stream, run, and add to it.

A kind of block adds its norms as slots: before a branch, after it, or on the stream itself.
"""

from typing import Any

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Block, CacheState, FeedForward, Norm, SequenceMixer, Sequences

from kanawa_layers.stack.residual import Residual

#: Names of the branches in Llama's checkpoints, and of parts that only ours have; a block adds those of its norms.
BRANCH_NAMES = {"attention": "self_attn", "feed_forward": "mlp"}
RESIDUAL_NAMES = {name: name for name in ("attention_residual", "feed_forward_residual")}


class ResidualBlock(Block):
    """Attention, then a feed-forward, each joining the stream through the slot `<branch>_residual`.

    Every slot of the config is a child that gets the stream's width. Emits `attention_output`, `feed_forward_output`
    (before norms and scales) and `residual_stream` (after the block).
    """

    attention: SequenceMixer
    feed_forward: FeedForward
    attention_residual: Residual
    feed_forward_residual: Residual

    class Config(Block.Config):
        attention: SequenceMixer.Config = kn.REQUIRED
        feed_forward: FeedForward.Config = kn.REQUIRED
        attention_residual: Residual.Config = Residual.Config()
        feed_forward_residual: Residual.Config = Residual.Config()

    def setup(self) -> None:
        """Declares every slot."""
        for name in self.config.fields():
            slot = getattr(self.config, name)
            # An absent slot is declared too: `self.<name>` is then None.
            if slot is None or isinstance(slot, kn.Module.Config):
                self.add_child(name, slot, input_dim=self.config.input_dim)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the residual stream after both branches, and the attention's cache."""
        x, cache = self._mixed("attention", x, sequences, cache)
        return self._transformed(x, sequences), cache

    def _norm(self, branch: str, name: str = "norm") -> Norm:
        """Returns the child `<branch>_norm`, or `<branch>_<name>`."""
        norm: Norm = getattr(self, f"{branch}_{name}")
        return norm

    def _residual(self, branch: str) -> Residual:
        residual: Residual = getattr(self, f"{branch}_residual")
        return residual

    def _read(self, branch: str, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        """Returns a branch's input."""
        del branch
        return x

    def _join(self, branch: str, x: Float[Array, "B T E"], y: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        """Returns the stream `x` with a branch's output `y` added."""
        return self._residual(branch)(x, y)

    def _mixed(
        self, branch: str, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        y, cache = getattr(self, branch)(self._read(branch, x), sequences, cache)
        # Before norms and scales, so that blocks of all kinds can be compared.
        self.emit(f"{branch}_output", y)
        return self._join(branch, x, y), cache

    def _transformed(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        y = self.feed_forward(self._read("feed_forward", x), sequences)
        self.emit("feed_forward_output", y)
        x = self._join("feed_forward", x, y)
        self.emit("residual_stream", x)
        return x

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, Any]:
        """Returns the layout of the attention's cache."""
        return self.attention.cache_spec(rows, length, dtype)
