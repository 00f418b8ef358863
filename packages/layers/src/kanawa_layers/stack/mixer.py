"""A block of one branch: x + mixer(norm(x)), as in Mamba, where a layer has no feed-forward."""

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Block, CacheState, Norm, SequenceMixer, Sequences

from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.stack.residual import Residual


class MixerBlock(Block):
    """One residual branch, normalised at its input (Mamba, Gu and Dao 2023, arXiv:2312.00752, figure 3).

    Emits `mixer_output` and `residual_stream`.
    """

    mixer: SequenceMixer
    norm: Norm
    residual: Residual

    class Config(Block.Config):
        mixer: SequenceMixer.Config = kn.REQUIRED
        norm: Norm.Config = RMSNorm.Config()
        residual: Residual.Config = Residual.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={"mixer": "mixer", "norm": "norm", "residual": "residual"}
        )

    def setup(self) -> None:
        """Declares the branch with its norm."""
        for name in ("mixer", "norm", "residual"):
            self.add_child(name, getattr(self.config, name), input_dim=self.config.input_dim)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the residual stream after the branch, and the mixer's cache."""
        mixed, cache = self.mixer(self.norm(x), sequences, cache)
        self.emit("mixer_output", mixed)
        x = self.residual(x, mixed)
        self.emit("residual_stream", x)
        return x, cache

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of the mixer's cache."""
        return self.mixer.cache_spec(rows, length, dtype)
