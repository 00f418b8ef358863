"""The Conformer's block (Gulati et al. 2020, arXiv:2005.08100): half a feed-forward, attention, a convolution, half."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Bool, Float
from kanawa.contracts import CacheState, CacheView, FeedForward, Norm, SequenceMixer, Sequences
from kanawa.kernels import MaskSpec

from kanawa_layers.attention.dot_product import DotProduct, SoftmaxDotProduct
from kanawa_layers.attention.projections import NAMES, Heads, add_projections, head_dim_of
from kanawa_layers.basic.conv import Conv
from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.basic.norms import BatchNorm, LayerNorm
from kanawa_layers.positions.absolute import AbsolutePositions, SinusoidalPositions
from kanawa_layers.speech.frames import CONV_1D
from kanawa_layers.stack.residual_blocks import RESIDUAL_NAMES, Residual, ResidualBlock

#: A projection that checkpoints hold as a convolution over one frame.
POINTWISE = kn.foreign.Names(
    tensors={
        "weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Permuted.Config(order=(1, 0, -1))),
        "bias": "bias",
    }
)


class RelativeAttention(SequenceMixer):
    """softmax(((q + content_bias) k + (q + position_bias) r) / sqrt(head_dim)) v (Transformer-XL, arXiv:1901.02860).

    r is a projection of the sinusoid of query position - key position. Every token sees the whole row or segment, whose
    tokens follow each other. Tags for remat: query, key, value, attention_output, attention_projection.
    """

    query: Linear
    key: Linear
    value: Linear
    relative: Linear
    output: Linear
    distances: AbsolutePositions
    dot_product: DotProduct

    class Config(SequenceMixer.Config):
        num_heads: kn.Size = kn.REQUIRED
        head_dim: kn.Size | None = None
        query: Linear.Config = Linear.Config(bias=True)
        key: Linear.Config = Linear.Config(bias=True)
        value: Linear.Config = Linear.Config(bias=True)
        relative: Linear.Config = Linear.Config()
        output: Linear.Config = Linear.Config(bias=True)
        distances: AbsolutePositions.Config = SinusoidalPositions.Config()
        dot_product: DotProduct.Config = SoftmaxDotProduct.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={**NAMES, "relative": "relative_k_proj", "distances": ""},
            tensors={"content_bias": "bias_u", "position_bias": "bias_v"},
        )

    def setup(self) -> None:
        """Declares the projections, and both biases [heads, head_dim], zero."""
        cfg = self.config
        self.heads = Heads(cfg.input_dim, cfg.num_heads, cfg.num_heads, head_dim_of(self))
        add_projections(self, cfg, self.heads)
        shape, axes = (self.heads.heads, self.heads.head_dim), ("heads", "head_dim")
        self.add_child(
            "relative", cfg.relative, input_shape=(cfg.input_dim,), output_shape=shape, axes=("embed", *axes)
        )
        for name in ("content_bias", "position_bias"):
            self.add_param(name, shape, axes=axes, init=kn.zeros, weight_decay=0.0)
        self.add_child("distances", cfg.distances, output_dim=cfg.input_dim)
        self.scale = 1.0 / math.sqrt(self.heads.head_dim)
        self.add_child("dot_product", cfg.dot_product, scale=self.scale, logit_cap=None)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the attended activations; there is no cache, since every token sees those after it."""
        del cache
        length = x.shape[1]
        q, k, v = self.tag("query", self.query(x)), self.tag("key", self.key(x)), self.tag("value", self.value(x))
        # From the farthest past to the farthest future: distances T - 1 to -(T - 1).
        r = self.relative(self.distances(jnp.arange(length - 1, -length, -1, dtype=jnp.int32)[None]))[0]
        placed = q + self.param("position_bias")[None, None]
        scores = jnp.einsum("bthd,nhd->bhtn", placed, r, preferred_element_type=jnp.float32)
        bias = _by_key(scores) * self.scale
        positions = sequences.token_positions(length)
        q = kn.constrain(q + self.param("content_bias")[None, None], ("batch", "length", "heads", "head_dim"))
        out = self.dot_product(q, CacheView(None, k, v), MaskSpec(), sequences, positions, bias=bias)
        y = self.tag("attention_projection", self.output(self.tag("attention_output", out)))
        return kn.constrain(y, ("batch", "length", "embed")), None

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns projections, scores by content and by distance, and values."""
        scores = 6.0 * self.heads.heads * self.heads.head_dim * context_length
        return float(super().flops_per_token(context_length) + scores)


def _by_key(scores: Float[Array, "B H T N"]) -> Float[Array, "B H T T"]:
    """Returns scores by distance, T - 1 to -(T - 1), as scores by key: row i begins at distance i (appendix B)."""
    rows, heads, length, _ = scores.shape
    # With one column more, a row of the flat array begins one element later each time it is read as one shorter.
    flat = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (1, 0))).reshape(rows, heads, 2 * length, length)
    return flat[:, :, 1:].reshape(rows, heads, length, 2 * length - 1)[..., :length]


class ConvolutionModule(kn.Module):
    """down(activation(norm(depthwise(a * sigmoid(b))))), where a and b are the halves of up(x) (section 2.2).

    Padding, segment id 0, is zero for the convolution and doesn't count for a batch norm. A row is one segment.
    """

    up: Linear
    depthwise: Conv
    norm: Norm
    down: Linear

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        activation: Callable[..., Array] = jax.nn.silu
        up: Linear.Config = Linear.Config(bias=True, foreign=POINTWISE)
        depthwise: Conv.Config = Conv.Config(window=(31,), depthwise=True, foreign=CONV_1D)
        norm: Norm.Config = BatchNorm.Config()
        down: Linear.Config = Linear.Config(bias=True, foreign=POINTWISE)
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "up": "pointwise_conv1",
                "depthwise": "depthwise_conv",
                "norm": "norm",
                "down": "pointwise_conv2",
            }
        )

    def setup(self) -> None:
        """Declares both projections, the depthwise convolution and the norm."""
        cfg, width = self.config, self.config.input_dim
        add_linear(self, "up", width, 2 * width, ("embed", "mlp"))
        self.add_child("depthwise", cfg.depthwise, input_dim=width, output_dim=width)
        self.add_child("norm", cfg.norm, input_dim=width)
        add_linear(self, "down", width, width, ("mlp", "embed"))

    def forward(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the transformed frames."""
        gated = jax.nn.glu(self.up(x), axis=-1)
        real: Bool[Array, "B T"] | None = None if sequences.segment_ids is None else sequences.segment_ids > 0
        if real is not None:
            gated = jnp.where(real[..., None], gated, jnp.zeros((), gated.dtype))
        mixed = self.depthwise(gated)
        # Only a norm over the batch sees other tokens, and must leave padding out.
        normed = self.norm(mixed, real) if isinstance(self.norm, BatchNorm) else self.norm(mixed)
        return kn.constrain(self.down(self.config.activation(normed)), ("batch", "length", "embed"))


class ConformerBlock(ResidualBlock):
    """Four branches, each normalised at its input, of which feed-forwards add half of their output; then a norm.

    Emits `attention_output`, `feed_forward_output` and, normalised, `residual_stream`.
    """

    first_feed_forward: FeedForward
    convolution: ConvolutionModule
    first_feed_forward_norm: Norm
    attention_norm: Norm
    convolution_norm: Norm
    feed_forward_norm: Norm
    output_norm: Norm
    first_feed_forward_residual: Residual
    convolution_residual: Residual

    class Config(ResidualBlock.Config):
        first_feed_forward: FeedForward.Config = kn.REQUIRED
        convolution: ConvolutionModule.Config = ConvolutionModule.Config()
        first_feed_forward_norm: Norm.Config = LayerNorm.Config()
        attention_norm: Norm.Config = LayerNorm.Config()
        convolution_norm: Norm.Config = LayerNorm.Config()
        feed_forward_norm: Norm.Config = LayerNorm.Config()
        output_norm: Norm.Config = LayerNorm.Config()
        first_feed_forward_residual: Residual.Config = Residual.Config(scale=0.5)
        convolution_residual: Residual.Config = Residual.Config()
        feed_forward_residual: Residual.Config = Residual.Config(scale=0.5)
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "first_feed_forward": "feed_forward1",
                "attention": "self_attn",
                "convolution": "conv",
                "feed_forward": "feed_forward2",
                "first_feed_forward_norm": "norm_feed_forward1",
                "attention_norm": "norm_self_att",
                "convolution_norm": "norm_conv",
                "feed_forward_norm": "norm_feed_forward2",
                "output_norm": "norm_out",
                "first_feed_forward_residual": "first_feed_forward_residual",
                "convolution_residual": "convolution_residual",
                **RESIDUAL_NAMES,
            }
        )

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the normalised stream after the four branches."""
        name = "first_feed_forward"
        x = self._join(name, x, self.first_feed_forward(self._read(name, x), sequences))
        x, cache = self._mixed("attention", x, sequences, cache)
        x = self._join("convolution", x, self.convolution(self._read("convolution", x), sequences))
        y = self.feed_forward(self._read("feed_forward", x), sequences)
        x = self._join("feed_forward", x, self.emit("feed_forward_output", y))
        return self.emit("residual_stream", self.output_norm(x)), cache

    def _read(self, branch: str, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self._norm(branch)(x)
