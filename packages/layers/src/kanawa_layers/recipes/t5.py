"""T5 and T5 v1.1 (Raffel et al. 2020, arXiv:1910.10683, and the released configs)."""

from functools import partial
from typing import Any

import jax
import kanawa as kn
from kanawa.contracts import Block, FeedForward, ForeignFamily

from kanawa_layers.attention.cross import CrossAttention
from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.masks import Bidirectional, Causal, Mask
from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.feedforward.activations import gelu_tanh
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.models.encoder_decoder import EncoderDecoderLM, Tower
from kanawa_layers.models.head import TiedHead, UntiedHead
from kanawa_layers.positions.biases import RelativeBias, SharedRelativeBias
from kanawa_layers.recipes.hf_config import Foreign, Key, activation, activation_name, arguments, written
from kanawa_layers.stack.repeated import RepeatedStack
from kanawa_layers.stack.residual_blocks import CrossPreNormBlock, PreNormBlock

_PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "o"}
_ATTENTION = kn.foreign.Names(children={**_PROJECTIONS, "positions": ""})
_CROSS = kn.foreign.Names(children=_PROJECTIONS)
_ENCODER_BLOCK = kn.foreign.Names(
    children={
        "attention": "layer.0.SelfAttention",
        "attention_norm": "layer.0.layer_norm",
        "feed_forward": "layer.1.DenseReluDense",
        "feed_forward_norm": "layer.1.layer_norm",
    }
)
_DECODER_BLOCK = kn.foreign.Names(
    children={
        "attention": "layer.0.SelfAttention",
        "attention_norm": "layer.0.layer_norm",
        "cross_attention": "layer.1.EncDecAttention",
        "cross_attention_norm": "layer.1.layer_norm",
        "feed_forward": "layer.2.DenseReluDense",
        "feed_forward_norm": "layer.2.layer_norm",
    }
)
#: The first layer holds the bias that all share.
_TOWER = kn.foreign.Names(
    children={"stack": "", "norm": "final_layer_norm", "relative_bias": "block.0.layer.0.SelfAttention"}
)
_MODEL = kn.foreign.Names(
    children={"embedding": "shared", "encoder": "encoder", "decoder": "decoder", "head": "lm_head"},
    repeats={
        "encoder.embed_tokens.weight": "embedding.weight",
        "decoder.embed_tokens.weight": "embedding.weight",
    },
    # The first checkpoints have a bias of cross attention that the model never used.
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
)


_KEYS = (
    Key("num_layers", "num_layers", "encoder.stack.num_layers"),
    Key("num_decoder_layers", "num_decoder_layers", "decoder.stack.num_layers", None),
    Key("d_model", "input_dim", "input_dim"),
    Key("num_heads", "num_heads", "encoder.stack.layer.attention.num_heads"),
    Key("d_ff", "hidden_dim", "encoder.stack.layer.feed_forward.hidden_dim"),
    Key("d_kv", "head_dim", "encoder.stack.layer.attention.head_dim"),
    Key("vocab_size", "vocab_size", "vocab_size"),
    Key("relative_attention_num_buckets", "num_buckets", "encoder.relative_bias.num_buckets", 32),
    Key("relative_attention_max_distance", "max_distance", "encoder.relative_bias.max_distance", 128),
    Key("layer_norm_epsilon", "norm_eps", "encoder.norm.eps", 1e-6),
)


def t5(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    hidden_dim: int,
    num_decoder_layers: int | None = None,
    head_dim: int = 64,
    # 32,000 pieces and 100 sentinels, rounded up to a multiple of 128.
    vocab_size: int = 32_128,
    num_buckets: int = 32,
    max_distance: int = 128,
    norm_eps: float = 1e-6,
    gated: bool = False,
    tied: bool = True,
) -> EncoderDecoderLM.Config:
    """Returns a T5 of any size; v1.1 is `gated` with tanh-gelu, and not `tied`. A tied head scales by width^-0.5."""
    norm = RMSNorm.Config(eps=norm_eps)
    feed_forward = _gated(hidden_dim) if gated else _plain(hidden_dim)
    # Scores aren't scaled, so queries are drawn smaller.
    shape: dict[str, Any] = {"num_heads": num_heads, "num_kv_heads": num_heads, "head_dim": head_dim, "scale": 1.0}
    query = Linear.Config(init_scale=1.0 / head_dim)

    def attention(mask: Mask.Config) -> GroupedQueryAttention.Config:
        positions = SharedRelativeBias.Config()
        return GroupedQueryAttention.Config(**shape, mask=mask, query=query, positions=positions, foreign=_ATTENTION)

    def tower(layers: int, layer: Block.Config, bidirectional: bool) -> Tower.Config:
        bias = RelativeBias.Config(
            num_buckets=num_buckets,
            max_distance=max_distance,
            bidirectional=bidirectional,
            init_stddev=input_dim**-0.5,
        )
        names = kn.foreign.Names(children={"layer": "block.{}"})
        stack = RepeatedStack.Config(num_layers=layers, layer=layer, foreign=names)
        return Tower.Config(num_heads=num_heads, relative_bias=bias, stack=stack, norm=norm, foreign=_TOWER)

    reading = PreNormBlock.Config(
        attention=attention(Bidirectional.Config()),
        feed_forward=feed_forward,
        attention_norm=norm,
        feed_forward_norm=norm,
        foreign=_ENCODER_BLOCK,
    )
    writing = CrossPreNormBlock.Config(
        attention=attention(Causal.Config()),
        # No positions: in T5 the memory has neither a bias nor a rotation.
        cross_attention=CrossAttention.Config(**shape, query=query, foreign=_CROSS),
        feed_forward=feed_forward,
        attention_norm=norm,
        cross_attention_norm=norm,
        feed_forward_norm=norm,
        foreign=_DECODER_BLOCK,
    )
    return EncoderDecoderLM.Config(
        vocab_size=vocab_size,
        input_dim=input_dim,
        embedding=Embedding.Config(init_stddev=1.0),
        encoder=tower(num_layers, reading, True),
        decoder=tower(num_decoder_layers or num_layers, writing, False),
        head=TiedHead.Config(logit_scale=input_dim**-0.5) if tied else UntiedHead.Config(),
        foreign=_MODEL,
    )


def _plain(hidden_dim: int) -> FeedForward.Config:
    names = kn.foreign.Names(children={"up": "wi", "down": "wo"})
    return PlainFeedForward.Config(hidden_dim=hidden_dim, activation=jax.nn.relu, foreign=names)


def _gated(hidden_dim: int) -> FeedForward.Config:
    names = kn.foreign.Names(children={"gate": "wi_0", "up": "wi_1", "down": "wo"})
    return GatedFeedForward.Config(hidden_dim=hidden_dim, activation=gelu_tanh, foreign=names)


def from_hf(config: Foreign) -> EncoderDecoderLM.Config:
    """Returns the model of a `t5` config.json, in which v1.1 says that its head isn't tied."""
    kind, gated = config.get("feed_forward_proj", "relu"), False
    if kind.startswith("gated-"):
        kind, gated = kind.removeprefix("gated-"), True
    tied = config.get("tie_word_embeddings", True)
    cfg = t5(**arguments(config, _KEYS), gated=gated, tied=tied)
    # "gated-gelu" has always meant the tanh form.
    function = gelu_tanh if gated and kind == "gelu" else activation(kind)
    for side in (cfg.encoder, cfg.decoder):
        side.stack.layer.feed_forward.set(activation=function)
    if tied and not config.get("scale_decoder_outputs", True):
        cfg.head.set(logit_scale=1.0)
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    feed_forward, tied = cfg.encoder.stack.layer.feed_forward, isinstance(cfg.head, TiedHead.Config)
    gated = isinstance(feed_forward, GatedFeedForward.Config)
    name = activation_name(feed_forward.activation, "gelu_new")
    return {
        "architectures": ["T5ForConditionalGeneration"],
        **written(cfg, _KEYS),
        "feed_forward_proj": f"gated-{name.removesuffix('_new')}" if gated else name,
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": cfg.head.logit_scale != 1.0,
        "is_encoder_decoder": True,
    }


FAMILY = ForeignFamily(from_hf, to_hf)

#: For texts of a small vocabulary, to try things out: learns in minutes on a processor.
t5_tiny = partial(t5, num_layers=2, input_dim=128, num_heads=4, hidden_dim=512, head_dim=32, vocab_size=2176)
#: T5 small: 60,506,624 parameters.
t5_small = partial(t5, num_layers=6, input_dim=512, num_heads=8, hidden_dim=2048)
#: T5 base: 222,903,552 parameters.
t5_base = partial(t5, num_layers=12, input_dim=768, num_heads=12, hidden_dim=3072)
#: T5 large: 737,668,096 parameters.
t5_large = partial(t5, num_layers=24, input_dim=1024, num_heads=16, hidden_dim=4096)
#: T5 v1.1 base: 247,577,856 parameters.
t5_v1_1_base = partial(t5, num_layers=12, input_dim=768, num_heads=12, hidden_dim=2048, gated=True, tied=False)
