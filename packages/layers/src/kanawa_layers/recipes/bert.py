"""BERT (Devlin et al. 2018, arXiv:1810.04805, and the released configs): post-norm, bidirectional, masked tokens."""

from functools import partial
from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.masks import Bidirectional
from kanawa_layers.basic.embedding import TokenTypes
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.feedforward.activations import gelu_exact
from kanawa_layers.models.encoder import EncoderLM
from kanawa_layers.models.masked_head import BiasedTiedHead, FirstTokenPooler, HeadTransform
from kanawa_layers.positions.absolute import LearnedPositions
from kanawa_layers.recipes.biased import biased_stack
from kanawa_layers.recipes.hf_config import Foreign, Key, activation, activation_name, arguments, expect, written
from kanawa_layers.stack.residual_blocks import PostNormBlock

_ATTENTION = kn.foreign.Names(
    children={
        "query": "self.query",
        "key": "self.key",
        "value": "self.value",
        "output": "output.dense",
        "positions": "",
    }
)
_FEED_FORWARD = kn.foreign.Names(children={"up": "intermediate.dense", "down": "output.dense"})
_MODEL = kn.foreign.Names(
    children={
        "embedding": "bert.embeddings.word_embeddings",
        "positions": "bert.embeddings.position_embeddings",
        "token_types": "bert.embeddings.token_type_embeddings",
        "embedding_norm": "bert.embeddings.LayerNorm",
        "stack": "bert.encoder",
        "pooler": "bert.pooler",
        "transform": "cls.predictions.transform",
        "head": "cls.predictions",
    },
    # The next-sentence head takes no part in predicting tokens; position_ids are a buffer, 0 to 511.
    ignored=("bert.embeddings.position_ids", "cls.seq_relationship.*"),
    # A bare BertModel's checkpoint lacks it.
    optional_prefix="bert.",
)


_KEYS = (
    Key("num_hidden_layers", "num_layers", "stack.num_layers"),
    Key("hidden_size", "input_dim", "input_dim"),
    Key("num_attention_heads", "num_heads", "stack.layer.attention.num_heads"),
    Key("intermediate_size", "hidden_dim", "stack.layer.feed_forward.hidden_dim"),
    Key("vocab_size", "vocab_size", "vocab_size"),
    Key("max_position_embeddings", "max_length", "positions.max_length"),
    Key("type_vocab_size", "num_types", "token_types.num_types"),
    Key("layer_norm_eps", "norm_eps", "embedding_norm.eps", 1e-12),
)


def bert(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    hidden_dim: int | None = None,
    vocab_size: int = 30_522,
    max_length: int = 512,
    num_types: int = 2,
    norm_eps: float = 1e-12,
    pooler: bool = False,
    head: bool = True,
) -> EncoderLM.Config:
    """Returns a BERT of any size: with the masked-token head, the pooler, both or neither."""
    norm = LayerNorm.Config(eps=norm_eps)
    stack = biased_stack(
        PostNormBlock.Config,
        "layer.{}",
        num_layers=num_layers,
        num_heads=num_heads,
        hidden_dim=hidden_dim or 4 * input_dim,
        norm=norm,
        activation=gelu_exact,
        mask=Bidirectional.Config(),
        attention=_ATTENTION,
        feed_forward=_FEED_FORWARD,
    )
    return EncoderLM.Config(
        vocab_size=vocab_size,
        input_dim=input_dim,
        positions=LearnedPositions.Config(max_length=max_length),
        token_types=TokenTypes.Config(num_types=num_types),
        embedding_norm=norm,
        stack=stack,
        pooler=FirstTokenPooler.Config() if pooler else None,
        transform=HeadTransform.Config(norm=norm) if head else None,
        head=BiasedTiedHead.Config() if head else None,
        foreign=_MODEL,
    )


def from_hf(config: Foreign) -> EncoderLM.Config:
    """Returns the model of a `bert` config.json, with the masked-token head where its architecture has one."""
    expect(config, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    kinds = config.get("architectures") or ["BertForMaskedLM"]
    cfg = bert(
        **arguments(config, _KEYS),
        pooler=kinds[0] in ("BertModel", "BertForPreTraining"),
        head=kinds[0] in ("BertForMaskedLM", "BertForPreTraining"),
    )
    function = activation(config.get("hidden_act", "gelu"))
    cfg.stack.layer.feed_forward.set(activation=function)
    if cfg.transform is not None:
        cfg.transform.set(activation=function)
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    kinds = {(True, True): "BertForPreTraining", (True, False): "BertModel", (False, True): "BertForMaskedLM"}
    return {
        "architectures": [kinds[cfg.pooler is not None, cfg.head is not None]],
        **written(cfg, _KEYS),
        "hidden_act": activation_name(cfg.stack.layer.feed_forward.activation, "gelu"),
        "tie_word_embeddings": True,
    }


FAMILY = ForeignFamily(from_hf, to_hf)

#: BERT base with its masked-token head: 109,514,298 parameters (109,482,240 with pooler, without head).
bert_base = partial(bert, num_layers=12, input_dim=768, num_heads=12)
#: BERT large with its masked-token head: 335,174,458 parameters (335,141,888 with pooler, without head).
bert_large = partial(bert, num_layers=24, input_dim=1024, num_heads=16)
