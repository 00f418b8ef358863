"""ViT (Dosovitskiy et al. 2020, arXiv:2010.11929, table 1), fine-tuned for the thousand classes of ImageNet."""

from functools import partial
from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignConfigError, ForeignFamily

from kanawa_layers.attention.masks import Bidirectional
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.basic.patches import PatchEmbedding
from kanawa_layers.feedforward.activations import gelu_exact
from kanawa_layers.models.vision import ImageClassifier, VisionTransformer
from kanawa_layers.positions.absolute import LearnedPositions
from kanawa_layers.recipes.biased import biased_stack
from kanawa_layers.recipes.hf_config import Foreign, Key, activation, activation_name, arguments, expect, written
from kanawa_layers.stack.residual_blocks import PreNormBlock

_ATTENTION = kn.foreign.Names(
    children={
        "query": "attention.query",
        "key": "attention.key",
        "value": "attention.value",
        "output": "output.dense",
        "positions": "",
    }
)
_BLOCK = kn.foreign.Names(
    children={
        "attention": "attention",
        "attention_norm": "layernorm_before",
        "feed_forward": "",
        "feed_forward_norm": "layernorm_after",
    }
)
# Checkpoints have a leading batch axis of 1: [1, positions, embed], and [1, 1, embed] for the class token.
_POSITIONS = kn.foreign.Names(
    tensors={"weight": kn.foreign.Tensor(name="position_embeddings", form=kn.foreign.Permuted.Config(order=(-1, 0, 1)))}
)
_ENCODER = kn.foreign.Names(
    children={
        "patches": "embeddings.patch_embeddings",
        "positions": "embeddings",
        "stack": "encoder",
        "norm": "layernorm",
    },
    tensors={
        "class_token": kn.foreign.Tensor(
            name="embeddings.cls_token", form=kn.foreign.Permuted.Config(order=(-1, -1, 0))
        ),
    },
)
_MODEL = kn.foreign.Names(children={"encoder": "vit", "head": "classifier"})


_KEYS = (
    Key("num_hidden_layers", "num_layers", "encoder.stack.num_layers"),
    Key("hidden_size", "input_dim", "input_dim"),
    Key("num_attention_heads", "num_heads", "encoder.stack.layer.attention.num_heads"),
    Key("intermediate_size", "hidden_dim", "encoder.stack.layer.feed_forward.hidden_dim"),
    Key("patch_size", "patch_size", "encoder.patches.patch_size"),
    Key("num_channels", "num_channels", "encoder.patches.num_channels", 3),
    Key("layer_norm_eps", "norm_eps", "encoder.norm.eps", 1e-12),
)


def vit(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    hidden_dim: int | None = None,
    patch_size: int = 16,
    image_size: int = 224,
    num_channels: int = 3,
    num_classes: int = 1000,
    norm_eps: float = 1e-12,
    num_registers: int = 0,
) -> ImageClassifier.Config:
    """Returns a ViT of any size, for square images of one size."""
    norm = LayerNorm.Config(eps=norm_eps)
    stack = biased_stack(
        PreNormBlock.Config,
        "layer.{}",
        num_layers=num_layers,
        num_heads=num_heads,
        hidden_dim=hidden_dim or 4 * input_dim,
        norm=norm,
        activation=gelu_exact,
        mask=Bidirectional.Config(),
        attention=_ATTENTION,
        feed_forward=kn.foreign.Names(children={"up": "intermediate.dense", "down": "output.dense"}),
        foreign=_BLOCK,
    )
    encoder = VisionTransformer.Config(
        patches=PatchEmbedding.Config(patch_size=patch_size, num_channels=num_channels),
        num_registers=num_registers,
        # One more than the patches: the class token has a position, too.
        positions=LearnedPositions.Config(max_length=(image_size // patch_size) ** 2 + 1, foreign=_POSITIONS),
        stack=stack,
        norm=norm,
        foreign=_ENCODER,
    )
    return ImageClassifier.Config(input_dim=input_dim, num_classes=num_classes, encoder=encoder, foreign=_MODEL)


def from_hf(config: Foreign) -> ImageClassifier.Config:
    """Returns the model of a `vit` config.json."""
    expect(config, qkv_bias=True)
    names, count = class_names_of(config)
    cfg = vit(**arguments(config, _KEYS), image_size=config["image_size"], num_classes=count)
    cfg.set(class_names=names)
    cfg.encoder.stack.layer.feed_forward.set(activation=activation(config.get("hidden_act", "gelu")))
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`; classes without names are numbered. Raises ForeignConfigError for others."""
    encoder = cfg.encoder
    if encoder.num_registers or not encoder.class_token or cfg.pooling is not None:
        message = "a vit in Hugging Face's form has a class token, no registers and no pooling"
        raise ForeignConfigError(message)
    return {
        "architectures": ["ViTForImageClassification"],
        **written(cfg, _KEYS),
        "image_size": round((encoder.positions.max_length - 1) ** 0.5) * encoder.patches.patch_size,
        **class_names_written(cfg),
        "hidden_act": activation_name(encoder.stack.layer.feed_forward.activation, "gelu"),
        "qkv_bias": True,
    }


def class_names_of(config: Foreign) -> tuple[tuple[str, ...], int]:
    """Returns the names of a config's classes, () where they are only numbered, and their count."""
    labels = config.get("id2label") or {}
    names = tuple(labels[key] for key in sorted(labels, key=int))
    return () if names == _numbered(len(names)) else names, len(labels) or config.get("num_labels", 2)


def class_names_written(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `class_names_of`, of a classifier's config."""
    names = cfg.class_names or _numbered(cfg.num_classes)
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{i}" for i in range(count))


FAMILY = ForeignFamily(from_hf, to_hf)

#: ViT-B/16 at 224 pixels: 86,567,656 parameters.
vit_b_16 = partial(vit, num_layers=12, input_dim=768, num_heads=12)
#: ViT-L/16 at 224 pixels: 304,326,632 parameters.
vit_l_16 = partial(vit, num_layers=24, input_dim=1024, num_heads=16)
#: For images of 32 pixels, to try things out: learns in a minute on a processor.
vit_tiny = partial(
    vit, num_layers=4, input_dim=128, num_heads=4, patch_size=4, image_size=32, num_classes=10, norm_eps=1e-6
)
