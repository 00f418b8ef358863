"""Blocks of two streams, text and picture, that attend together (MMDiT, Esser et al. 2024, arXiv:2403.03206)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Block, CacheState, CacheView, FeedForward, Norm, SequenceMixer, Sequences
from kanawa.errors import ModuleError
from kanawa.kernels import MaskSpec

from kanawa_layers.attention.dot_product import DotProduct, SoftmaxDotProduct
from kanawa_layers.attention.projections import head_dim_of
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import UnitLayerNorm
from kanawa_layers.diffusion.modulation import AdaptiveZero, Modulation, Modulations, condition_of


def split_streams(x: Float[Array, "B T E"], sequences: Sequences, path: str) -> tuple[jax.Array, jax.Array]:
    """Returns text and picture: the first tokens are the text's, as many as `Sequences.memory` has."""
    if sequences.memory is None:
        message = f"{path} reads two streams, and Sequences.memory, the text's states, is None"
        raise ModuleError(message)
    length = sequences.memory.shape[1]
    return x[:, :length], x[:, length:]


class ScaleFirst(Modulations):
    """The vectors of `AdaptiveZero` in reverse: files that hold scale, then shift."""

    vectors: AdaptiveZero

    class Config(Modulations.Config):
        vectors: AdaptiveZero.Config = AdaptiveZero.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(children={"vectors": ""})

    def setup(self) -> None:
        """Declares the projection."""
        cfg = self.config
        self.add_child("vectors", cfg.vectors, input_dim=cfg.input_dim, count=cfg.count)

    def forward(self, condition: Float[Array, "B E"]) -> list[Float[Array, "B 1 E"]]:
        """Returns the vectors, shift first."""
        return list(self.vectors(condition))[::-1]


class JointAttention(SequenceMixer):
    """Each stream has its own projections and norms; queries of either see keys of both.

    `text_output` None is of a last layer, whose text nobody reads: its tokens become zeros. Texts may be padded, by
    `Sequences.memory_segment_ids`.
    """

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    text_query: Linear
    text_key: Linear
    text_value: Linear
    text_output: Linear | None
    text_query_norm: Norm | None
    text_key_norm: Norm | None
    dot_product: DotProduct

    class Config(SequenceMixer.Config):
        num_heads: kn.Size = kn.REQUIRED
        head_dim: kn.Size | None = None
        query: Linear.Config = Linear.Config(bias=True)
        key: Linear.Config = Linear.Config(bias=True)
        value: Linear.Config = Linear.Config(bias=True)
        output: Linear.Config = Linear.Config(bias=True)
        query_norm: Norm.Config | None = None
        key_norm: Norm.Config | None = None
        text_query: Linear.Config = Linear.Config(bias=True)
        text_key: Linear.Config = Linear.Config(bias=True)
        text_value: Linear.Config = Linear.Config(bias=True)
        text_output: Linear.Config | None = Linear.Config(bias=True)
        text_query_norm: Norm.Config | None = None
        text_key_norm: Norm.Config | None = None
        dot_product: DotProduct.Config = SoftmaxDotProduct.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "query": "to_q", "key": "to_k", "value": "to_v", "output": "to_out.0",
                "query_norm": "norm_q", "key_norm": "norm_k",
                "text_query": "add_q_proj", "text_key": "add_k_proj", "text_value": "add_v_proj",
                "text_output": "to_add_out", "text_query_norm": "norm_added_q", "text_key_norm": "norm_added_k",
            }
        )  # fmt: skip

    def setup(self) -> None:
        """Declares the projections, norms and dot product."""
        cfg = self.config
        self.head_dim = head_dim_of(self)
        heads = (cfg.num_heads, self.head_dim)
        for stream in ("", "text_"):
            for name in ("query", "key", "value"):
                axes = ("embed", "heads", "head_dim")
                self.add_child(
                    stream + name,
                    getattr(cfg, stream + name),
                    input_shape=(cfg.input_dim,),
                    output_shape=heads,
                    axes=axes,
                )
            for name in ("query_norm", "key_norm"):
                self.add_child(stream + name, getattr(cfg, stream + name), input_dim=self.head_dim)
            axes = ("heads", "head_dim", "embed")
            output = getattr(cfg, f"{stream}output")
            self.add_child(f"{stream}output", output, input_shape=heads, output_shape=(cfg.input_dim,), axes=axes)
        self.add_child("dot_product", cfg.dot_product, scale=1.0 / math.sqrt(self.head_dim), logit_cap=None)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns what both streams take, text first; there is no cache."""
        text, picture = split_streams(x, sequences, self.path)

        def heads(name: str) -> Float[Array, "B T H D"]:
            both = []
            for stream, tokens in (("text_", text), ("", picture)):
                y = getattr(self, stream + name)(tokens)
                norm = getattr(self, f"{stream}{name}_norm", None)
                both.append(y if norm is None else norm(y))
            return self.tag(name, jnp.concatenate(both, axis=1))

        q, k, v = heads("query"), heads("key"), heads("value")
        q = kn.constrain(q, ("batch", "length", "heads", "head_dim"))
        segments = sequences.memory_segment_ids
        if segments is not None:
            segments = jnp.concatenate([segments, jnp.ones(picture.shape[:2], segments.dtype)], axis=1)
        rows = Sequences(segment_ids=segments)
        out = self.dot_product(q, CacheView(None, k, v), MaskSpec(), rows, rows.token_positions(x.shape[1]))
        of_text, of_picture = split_streams(self.tag("attention_output", out), sequences, self.path)
        written = jnp.zeros_like(text) if self.text_output is None else self.text_output(of_text)
        y = self.tag("attention_projection", jnp.concatenate([written, self.output(of_picture)], axis=1))
        return kn.constrain(y, ("batch", "length", "embed")), cache

    @kn.nowrap
    def flops(self, pictures: int, texts: int) -> float:
        """Returns forward FLOPs of a row of so many tokens of a picture and of a text."""
        own = ("query", "key", "value", "output")
        parts = [(getattr(self, name), pictures) for name in own]
        parts += [(getattr(self, f"text_{name}"), texts) for name in own]
        total = sum(part.flops_per_token(1.0) * tokens for part, tokens in parts if part is not None)
        return float(total + 4.0 * self.config.num_heads * self.head_dim * (pictures + texts) ** 2)


class JointBlock(Block):
    """Both streams: x + gate * attention(norm(x) * (1 + scale) + shift), then the same with a feed-forward each.

    The condition modulates them by vectors of their own. Without `text_feed_forward`, in a last layer, the text is read
    and not written: its modulation has a scale and a shift alone, and the stream's text stays what it was.
    """

    norm: Norm
    modulation: Modulations
    text_modulation: Modulations
    attention: SequenceMixer
    feed_forward: FeedForward
    text_feed_forward: FeedForward | None

    class Config(Block.Config):
        norm: Norm.Config = UnitLayerNorm.Config()
        modulation: Modulations.Config = AdaptiveZero.Config()
        text_modulation: Modulations.Config = AdaptiveZero.Config()
        attention: SequenceMixer.Config = kn.REQUIRED
        feed_forward: FeedForward.Config = kn.REQUIRED
        text_feed_forward: FeedForward.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "norm": "norm2", "modulation": "norm1", "text_modulation": "norm1_context", "attention": "attn",
                "feed_forward": "ff", "text_feed_forward": "ff_context",
            }
        )  # fmt: skip

    def setup(self) -> None:
        """Declares the parts."""
        cfg = self.config
        for name in ("norm", "attention", "feed_forward", "text_feed_forward"):
            self.add_child(name, getattr(cfg, name), input_dim=cfg.input_dim)
        self.add_child("modulation", cfg.modulation, input_dim=cfg.input_dim, count=6)
        count = 2 if cfg.text_feed_forward is None else 6
        self.add_child("text_modulation", cfg.text_modulation, input_dim=cfg.input_dim, count=count)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns both streams after this layer, text first."""
        condition = condition_of(self, sequences)
        text, picture = split_streams(x, sequences, self.path)
        vectors, of_text = self.modulation(condition), self.text_modulation(condition)
        attention, feed_forward = Modulation(*vectors[:3]), Modulation(*vectors[3:])
        shift, scale = of_text[:2]
        read = [self.norm(text) * (1.0 + scale) + shift, attention.read(self.norm(picture))]
        y, cache = self.attention(jnp.concatenate(read, axis=1), sequences, cache)
        from_text, from_picture = split_streams(self.emit("attention_output", y), sequences, self.path)
        picture = picture + attention.add(from_picture)
        picture = picture + feed_forward.add(self.feed_forward(feed_forward.read(self.norm(picture)), sequences))
        if self.text_feed_forward is not None:
            text_attention, text_forward = Modulation(*of_text[:3]), Modulation(*of_text[3:])
            text = text + text_attention.add(from_text)
            text = text + text_forward.add(self.text_feed_forward(text_forward.read(self.norm(text)), sequences))
        x = kn.constrain(jnp.concatenate([text, picture], axis=1), ("batch", "length", "embed"))
        return self.emit("residual_stream", x), cache

    @kn.nowrap
    def flops(self, pictures: int, texts: int) -> float:
        """Returns forward FLOPs of a row of so many tokens of a picture and of a text."""
        attention: Any = self.attention
        total = attention.flops(pictures, texts) + self.feed_forward.flops_per_token(1.0) * pictures
        if self.text_feed_forward is not None:
            total += self.text_feed_forward.flops_per_token(1.0) * texts
        return float(total + self.modulation.flops_per_token(1.0) + self.text_modulation.flops_per_token(1.0))
