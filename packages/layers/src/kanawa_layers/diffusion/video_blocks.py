"""The block of video transformers: modulated self attention and feed-forward, and cross attention to a text."""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Block, CacheState, FeedForward, Norm, SequenceMixer, Sequences

from kanawa_layers.basic.norms import LayerNorm, UnitLayerNorm
from kanawa_layers.diffusion.modulation import Modulation, Modulations, condition_of


class SharedModulation(Modulations):
    """A learned table [count, embed], added to vectors that all blocks share: a condition of count * embed, or of one.

    It costs a block `count` vectors in place of a projection (PixArt, arXiv:2310.00426; Wan, arXiv:2503.20314).
    """

    class Config(Modulations.Config):
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={
                "table": kn.foreign.Tensor(name="scale_shift_table", form=kn.foreign.Permuted.Config(order=(-1, 0, 1)))
            }
        )

    def setup(self) -> None:
        """Declares `table`."""
        cfg = self.config
        init = kn.normal(cfg.input_dim**-0.5)
        self.add_param("table", (cfg.count, cfg.input_dim), axes=(None, "embed"), init=init, weight_decay=0.0)

    def forward(self, condition: Float[Array, "B E"]) -> list[Float[Array, "B 1 E"]]:
        """Returns the vectors in the compute dtype; the sum is in fp32."""
        table = self.param("table", jnp.float32)[None]
        shared = condition.reshape(condition.shape[0], -1, table.shape[-1]).astype(jnp.float32)
        summed = (table + shared).astype(condition.dtype)
        return [summed[:, i, None] for i in range(self.config.count)]


class VideoBlock(Block):
    """x + gate * attention, x + cross attention of `Sequences.memory`, x + gate * feed-forward, each of a norm of x.

    The condition modulates the first and the last.
    """

    attention_norm: Norm
    attention: SequenceMixer
    cross_norm: Norm | None
    cross_attention: SequenceMixer
    feed_forward_norm: Norm
    feed_forward: FeedForward
    modulation: Modulations

    class Config(Block.Config):
        attention_norm: Norm.Config = UnitLayerNorm.Config()
        attention: SequenceMixer.Config = kn.REQUIRED
        cross_norm: Norm.Config | None = LayerNorm.Config(eps=1e-6)
        cross_attention: SequenceMixer.Config = kn.REQUIRED
        feed_forward_norm: Norm.Config = UnitLayerNorm.Config()
        feed_forward: FeedForward.Config = kn.REQUIRED
        modulation: Modulations.Config = SharedModulation.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "attention_norm": "norm1", "attention": "attn1", "cross_norm": "norm2", "cross_attention": "attn2",
                "feed_forward_norm": "norm3", "feed_forward": "ffn", "modulation": "",
            }
        )  # fmt: skip

    def setup(self) -> None:
        """Declares the parts; the modulation makes six vectors."""
        cfg = self.config
        for name in (
            "attention_norm", "attention", "cross_norm", "cross_attention", "feed_forward_norm", "feed_forward",
        ):  # fmt: skip
            self.add_child(name, getattr(cfg, name), input_dim=cfg.input_dim)
        self.add_child("modulation", cfg.modulation, input_dim=cfg.input_dim, count=6)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the residual stream after all three."""
        vectors = self.modulation(condition_of(self, sequences))
        attention, feed_forward = Modulation(*vectors[:3]), Modulation(*vectors[3:])
        y, cache = self.attention(attention.read(self.attention_norm(x)), sequences, cache)
        x = x + attention.add(self.emit("attention_output", y))
        y, _ = self.cross_attention(x if self.cross_norm is None else self.cross_norm(x), sequences)
        x = x + self.emit("cross_attention_output", y)
        y = self.feed_forward(feed_forward.read(self.feed_forward_norm(x)), sequences)
        x = x + feed_forward.add(self.emit("feed_forward_output", y))
        return self.emit("residual_stream", x), cache

    @kn.nowrap
    def flops(self, tokens: int, texts: int) -> float:
        """Returns forward FLOPs of a row of so many tokens, each of which sees all, and all of a text's."""
        cross: Any = self.cross_attention
        each = self.attention.flops_per_token(tokens) + self.feed_forward.flops_per_token(tokens)
        each += cross.query.flops_per_token(1.0) + cross.output.flops_per_token(1.0)
        each += 4.0 * cross.heads.heads * cross.heads.head_dim * texts
        memory = cross.key.flops_per_token(1.0) + cross.value.flops_per_token(1.0)
        return float(each * tokens + memory * texts)


def grid_coordinates(frames: int, rows: int, columns: int) -> jax.Array:
    """Returns time, row and column of each token of a video, [1, tokens, 3], frames one after another."""
    axes = (jnp.arange(size, dtype=jnp.int32) for size in (frames, rows, columns))
    return jnp.stack(jnp.meshgrid(*axes, indexing="ij"), axis=-1).reshape(1, frames * rows * columns, 3)
