"""Blocks of branches on the residual stream, by where they normalise, and how a branch is added to the stream."""

from typing import Any

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.arrays.broadcast import spread
from kanawa.arrays.init import Constant
from kanawa.arrays.materialize import row_major
from kanawa.contracts import Block, CacheState, FeedForward, Norm, SequenceMixer, Sequences

from kanawa_layers.basic.dropout import Dropout, StochasticDepth
from kanawa_layers.basic.norms import LayerNorm, RMSNorm
from kanawa_layers.feedforward.plain import Bottleneck


class Residual(kn.Module):
    """x + scale * drop(adapt(y)), in x's dtype. By default just x + y, with no parameters.

    `scale` is a constant (Granite, MiniCPM), `layer_scale` the initial value of a learned one per channel (CaiT,
    Touvron et al. 2021, arXiv:2103.17239), `adapter` a bottleneck, `stochastic_depth` drops the branch.
    """

    adapter: Bottleneck | None
    dropout: Dropout | None
    stochastic_depth: StochasticDepth | None

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        scale: kn.Finite = 1.0
        layer_scale: kn.Finite | None = None
        adapter: Bottleneck.Config | None = None
        dropout: Dropout.Config | None = None
        stochastic_depth: StochasticDepth.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"gamma": "gamma"}, children={"adapter": "adapter"})

    def setup(self) -> None:
        """Declares the parts that are there."""
        cfg = self.config
        self.add_child("adapter", cfg.adapter, input_dim=cfg.input_dim)
        self.add_child("dropout", cfg.dropout)
        self.add_child("stochastic_depth", cfg.stochastic_depth)
        if cfg.layer_scale is not None:
            init = Constant(cfg.layer_scale)
            self.add_param("gamma", (cfg.input_dim,), axes=("norm",), init=init, weight_decay=0.0)

    def forward(self, x: Float[Array, "B T E"], y: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        """Returns the stream `x` with the branch's output `y` added."""
        cfg = self.config
        for part in (self.adapter, self.dropout, self.stochastic_depth):
            y = y if part is None else part(y)
        if cfg.layer_scale is not None:
            y = y * spread(self.param("gamma"), y.shape)
        x = x + (y if cfg.scale == 1.0 else y * jnp.asarray(cfg.scale, y.dtype))
        return row_major(x)


#: Names of the branches in Llama's checkpoints, and of parts that only ours have; a block adds those of its norms.
BRANCH_NAMES = {"attention": "self_attn", "feed_forward": "mlp"}
RESIDUAL_NAMES = {name: name for name in ("attention_residual", "feed_forward_residual")}
#: Gemma's names of a block with a norm on both sides of each branch.
SANDWICH_NAMES = {
    **BRANCH_NAMES,
    "attention_norm": "input_layernorm",
    # In Llama this name is the norm before the feed-forward; here it is that of attention's output.
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
    **RESIDUAL_NAMES,
}


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
        y = self.emit(f"{branch}_output", y)
        return self._join(branch, x, y), cache

    def _transformed(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        y = self.feed_forward(self._read("feed_forward", x), sequences)
        y = self.emit("feed_forward_output", y)
        x = self._join("feed_forward", x, y)
        return self.emit("residual_stream", x)

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, Any]:
        """Returns the layout of the attention's cache."""
        return self.attention.cache_spec(rows, length, dtype)


class PreNormBlock(ResidualBlock):
    """Two residual branches, each normalised at its input (Xiong et al. 2020, arXiv:2002.04745)."""

    attention_norm: Norm
    feed_forward_norm: Norm

    class Config(ResidualBlock.Config):
        attention_norm: Norm.Config = RMSNorm.Config()
        feed_forward_norm: Norm.Config = RMSNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                **BRANCH_NAMES,
                "attention_norm": "input_layernorm",
                # Llama names it by its position, not its purpose.
                "feed_forward_norm": "post_attention_layernorm",
                **RESIDUAL_NAMES,
            }
        )

    def _read(self, branch: str, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self._norm(branch)(x)


class PostNormBlock(ResidualBlock):
    """The original transformer's block (Vaswani et al. 2017, arXiv:1706.03762): the stream itself is normalised."""

    attention_norm: Norm
    feed_forward_norm: Norm

    class Config(ResidualBlock.Config):
        attention_norm: Norm.Config = LayerNorm.Config()
        feed_forward_norm: Norm.Config = LayerNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                **BRANCH_NAMES,
                "attention": "attention",
                # BERT has no module around the feed-forward; its two projections are children of the block.
                "feed_forward": "",
                "attention_norm": "attention.output.LayerNorm",
                "feed_forward_norm": "output.LayerNorm",
                **RESIDUAL_NAMES,
            }
        )

    def _join(self, branch: str, x: Float[Array, "B T E"], y: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self._norm(branch)(self._residual(branch)(x, y))


class OutputNormBlock(ResidualBlock):
    """Norms on the branches' outputs only (OLMo 2, arXiv:2501.00656, section 3.2; Swin v2's res-post-norm)."""

    attention_norm: Norm
    feed_forward_norm: Norm

    class Config(ResidualBlock.Config):
        attention_norm: Norm.Config = RMSNorm.Config()
        feed_forward_norm: Norm.Config = RMSNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                **BRANCH_NAMES,
                "attention_norm": "post_attention_layernorm",
                "feed_forward_norm": "post_feedforward_layernorm",
                **RESIDUAL_NAMES,
            }
        )

    def _join(self, branch: str, x: Float[Array, "B T E"], y: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self._residual(branch)(x, self._norm(branch)(y))


class SandwichNormBlock(ResidualBlock):
    """A norm before and one after each branch (Gemma 2, arXiv:2408.00118, section 2; CogView, arXiv:2105.13290)."""

    attention_norm: Norm
    attention_output_norm: Norm
    feed_forward_norm: Norm
    feed_forward_output_norm: Norm

    class Config(ResidualBlock.Config):
        attention_norm: Norm.Config = RMSNorm.Config()
        attention_output_norm: Norm.Config = RMSNorm.Config()
        feed_forward_norm: Norm.Config = RMSNorm.Config()
        feed_forward_output_norm: Norm.Config = RMSNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(children=SANDWICH_NAMES)

    def _read(self, branch: str, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self._norm(branch)(x)

    def _join(self, branch: str, x: Float[Array, "B T E"], y: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self._residual(branch)(x, self._norm(branch, "output_norm")(y))


class ParallelBlock(ResidualBlock):
    """Both branches read the same stream, through one norm, or two where `feed_forward_norm` is set (GPT-NeoX).

    PaLM (arXiv:2204.02311, section 2) reports 15 % faster training at large scale.
    """

    attention_norm: Norm
    feed_forward_norm: Norm | None

    class Config(ResidualBlock.Config):
        attention_norm: Norm.Config = LayerNorm.Config()
        feed_forward_norm: Norm.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                **BRANCH_NAMES,
                "attention_norm": "input_layernorm",
                "feed_forward_norm": "post_attention_layernorm",
                **RESIDUAL_NAMES,
            }
        )

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the residual stream after both branches, and the attention's cache."""
        normed = self.attention_norm(x)
        mixed, cache = self.attention(normed, sequences, cache)
        mixed = self.emit("attention_output", mixed)
        # The one norm is called once: a second call would record its outputs twice.
        if self.feed_forward_norm is not None:
            normed = self.feed_forward_norm(x)
        transformed = self.feed_forward(normed, sequences)
        transformed = self.emit("feed_forward_output", transformed)
        x = self._join("feed_forward", self._join("attention", x, mixed), transformed)
        return self.emit("residual_stream", x), cache


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
        mixed = self.emit("mixer_output", mixed)
        x = self.residual(x, mixed)
        return self.emit("residual_stream", x), cache

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of the mixer's cache."""
        return self.mixer.cache_spec(rows, length, dtype)


_MIXERS = ("attention", "cross_attention")


class CrossPreNormBlock(ResidualBlock):
    """x + branch(norm(x)) three times, as in T5's decoder (Raffel et al. 2020, arXiv:1910.10683).

    Its cache holds one of each attention, under the branch's name. Emits `cross_attention_output` as well.
    """

    cross_attention: SequenceMixer
    attention_norm: Norm
    cross_attention_norm: Norm
    feed_forward_norm: Norm
    cross_attention_residual: Residual

    class Config(ResidualBlock.Config):
        cross_attention: SequenceMixer.Config = kn.REQUIRED
        attention_norm: Norm.Config = RMSNorm.Config()
        cross_attention_norm: Norm.Config = RMSNorm.Config()
        feed_forward_norm: Norm.Config = RMSNorm.Config()
        cross_attention_residual: Residual.Config = Residual.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                **BRANCH_NAMES,
                # BART's names; T5's own come with its recipe.
                "cross_attention": "encoder_attn",
                "attention_norm": "self_attn_layer_norm",
                "cross_attention_norm": "encoder_attn_layer_norm",
                "feed_forward_norm": "final_layer_norm",
                "cross_attention_residual": "cross_attention_residual",
                **RESIDUAL_NAMES,
            }
        )

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the residual stream after the three branches, and both caches."""
        extended = {}
        for branch in _MIXERS:
            x, extended[branch] = self._mixed(branch, x, sequences, None if cache is None else cache[branch])
        return self._transformed(x, sequences), None if cache is None else extended

    def _read(self, branch: str, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self._norm(branch)(x)

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, Any]:
        """Returns the layout of both attentions' caches."""
        return {name: getattr(self, name).cache_spec(rows, length, dtype) for name in _MIXERS}
