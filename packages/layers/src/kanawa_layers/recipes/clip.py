"""CLIP (Radford et al. 2021, arXiv:2103.00020) and SigLIP (Zhai et al. 2023, arXiv:2303.15343), released configs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.cross import CrossAttention
from kanawa_layers.attention.masks import Bidirectional, Causal, Mask
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.basic.patches import PatchEmbedding
from kanawa_layers.basic.pixels import PixelNorm
from kanawa_layers.feedforward.activations import gelu_tanh, quick_gelu
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.models.two_towers import AttentionPooling, SigmoidPairs, SoftmaxPairs, TextTower, TwoTowers
from kanawa_layers.models.vision import VisionTransformer
from kanawa_layers.positions.absolute import LearnedPositions
from kanawa_layers.recipes.biased import biased_stack
from kanawa_layers.recipes.hf_config import Foreign, activation, activation_name, expect
from kanawa_layers.stack.residual_blocks import PreNormBlock

_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_FEED_FORWARD = kn.foreign.Names(children={"up": "fc1", "down": "fc2"})
_BLOCK = kn.foreign.Names(
    children={
        "attention": "self_attn",
        "attention_norm": "layer_norm1",
        "feed_forward": "mlp",
        "feed_forward_norm": "layer_norm2",
    }
)
_PATCH = kn.foreign.Names(
    tensors={
        "weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Permuted.Config(order=(3, 2, 0, 1))),
        "bias": "bias",
    }
)
_IMAGE = kn.foreign.Names(
    children={
        "patches": "embeddings.patch_embedding",
        "positions": "embeddings.position_embedding",
        # Their spelling.
        "pre_norm": "pre_layrnorm",
        "stack": "encoder",
        "norm": "post_layernorm",
    },
    tensors={"class_token": "embeddings.class_embedding"},
)
#: The towers' position_ids are buffers, 0, 1, 2, …
_IGNORED = ("*.embeddings.position_ids",)
_IN = kn.foreign.Names(
    tensors={
        "weight": kn.foreign.Tensor(name="in_proj_weight", form=kn.foreign.Matrix.Config()),
        "bias": kn.foreign.Tensor(name="in_proj_bias", form=kn.foreign.Flat.Config()),
    }
)


def _stack(layers: int, heads: int, hidden: int, mask: Mask.Config, function: Any, eps: float) -> Any:
    return biased_stack(
        PreNormBlock.Config,
        "layers.{}",
        num_layers=layers,
        num_heads=heads,
        hidden_dim=hidden,
        norm=LayerNorm.Config(eps=eps),
        activation=function,
        mask=mask,
        attention=kn.foreign.Names(children={**_PROJECTIONS, "positions": ""}),
        feed_forward=_FEED_FORWARD,
        foreign=_BLOCK,
    )


def _pooling(heads: int, hidden: int, function: Any, norm: LayerNorm.Config) -> AttentionPooling.Config:
    """Returns SigLIP's, whose checkpoints hold the three projections of its attention as one."""
    biased, into = Linear.Config(bias=True), Linear.Config(bias=True, foreign=_IN)
    names = kn.foreign.Names(
        children={"output": "out_proj"}, joined=(kn.foreign.Joined(name="", parts=("query", "key", "value")),)
    )
    return AttentionPooling.Config(
        attention=CrossAttention.Config(
            num_heads=heads, query=into, key=into, value=into, output=biased, foreign=names
        ),
        norm=norm,
        feed_forward=PlainFeedForward.Config(
            hidden_dim=hidden, activation=function, up=biased, down=biased, foreign=_FEED_FORWARD
        ),
    )


def _text_names(siglip: bool) -> kn.foreign.Names:
    return kn.foreign.Names(
        children={
            "embedding": "text_model.embeddings.token_embedding",
            "positions": "text_model.embeddings.position_embedding",
            "stack": "text_model.encoder",
            "norm": "text_model.final_layer_norm",
            "projection": "text_model.head" if siglip else "text_projection",
        }
    )


def image_tower(
    *,
    siglip: bool = False,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    hidden_dim: int | None = None,
    patch_size: int,
    image_size: int,
    activation: Callable[..., Any] | None = None,
    norm_eps: float | None = None,
) -> VisionTransformer.Config:
    """Returns the tower of images alone."""
    function, eps = (gelu_tanh, 1e-6) if siglip else (quick_gelu, 1e-5)
    function, eps = activation or function, norm_eps or eps
    norm, patches = LayerNorm.Config(eps=eps), (image_size // patch_size) ** 2
    return VisionTransformer.Config(
        # SigLIP's pixels are from -1 to 1; CLIP's have the means and deviations of its pictures.
        pixels=PixelNorm.Config()
        if siglip
        else PixelNorm.Config(mean=(0.48145466, 0.4578275, 0.40821073), stddev=(0.26862954, 0.26130258, 0.27577711)),
        patches=PatchEmbedding.Config(
            patch_size=patch_size,
            projection=Linear.Config(bias=siglip, foreign=_PATCH),
            foreign=kn.foreign.Names(children={"projection": ""}),
        ),
        class_token=not siglip,
        positions=LearnedPositions.Config(max_length=patches + (not siglip)),
        pre_norm=None if siglip else norm,
        stack=_stack(num_layers, num_heads, hidden_dim or 4 * input_dim, Bidirectional.Config(), function, eps),
        norm=norm,
        foreign=_IMAGE,
    )


def text_tower(
    *,
    siglip: bool = False,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    hidden_dim: int | None = None,
    vocab_size: int,
    max_length: int,
    end_id: int | None = None,
    activation: Callable[..., Any] | None = None,
    norm_eps: float | None = None,
) -> TextTower.Config:
    """Returns the tower of texts alone."""
    function, eps = (gelu_tanh, 1e-6) if siglip else (quick_gelu, 1e-5)
    function, eps = activation or function, norm_eps or eps
    mask = Bidirectional.Config() if siglip else Causal.Config()
    return TextTower.Config(
        input_dim=input_dim,
        vocab_size=vocab_size,
        end_id=end_id,
        positions=LearnedPositions.Config(max_length=max_length),
        stack=_stack(num_layers, num_heads, hidden_dim or 4 * input_dim, mask, function, eps),
        norm=LayerNorm.Config(eps=eps),
        projection=Linear.Config(bias=siglip),
        foreign=_text_names(siglip),
    )


def two_towers(
    *,
    siglip: bool = False,
    output_dim: int,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    hidden_dim: int | None = None,
    patch_size: int,
    image_size: int,
    text_layers: int,
    text_dim: int,
    text_heads: int,
    text_hidden_dim: int | None = None,
    vocab_size: int,
    max_length: int,
    end_id: int | None = None,
    image_activation: Callable[..., Any] | None = None,
    text_activation: Callable[..., Any] | None = None,
    norm_eps: float | None = None,
) -> TwoTowers.Config:
    """Returns a CLIP of any size, or a SigLIP: bidirectional text, attention pooling, and the sigmoid loss."""
    usual, eps = (gelu_tanh, 1e-6) if siglip else (quick_gelu, 1e-5)
    eps = norm_eps or eps
    norm, hidden = LayerNorm.Config(eps=eps), hidden_dim or 4 * input_dim
    image_function, text_function = image_activation or usual, text_activation or usual
    image = image_tower(
        siglip=siglip,
        num_layers=num_layers,
        input_dim=input_dim,
        num_heads=num_heads,
        hidden_dim=hidden,
        patch_size=patch_size,
        image_size=image_size,
        activation=image_function,
        norm_eps=eps,
    )
    pooling = _pooling(num_heads, hidden, image_function, norm) if siglip else None
    text = text_tower(
        siglip=siglip,
        num_layers=text_layers,
        input_dim=text_dim,
        num_heads=text_heads,
        hidden_dim=text_hidden_dim,
        vocab_size=vocab_size,
        max_length=max_length,
        end_id=end_id,
        activation=text_function,
        norm_eps=eps,
    )
    children = {"image": "vision_model", "pooling": "vision_model.head", "projection": "visual_projection"}
    return TwoTowers.Config(
        input_dim=input_dim,
        output_dim=output_dim,
        image=image,
        pooling=pooling,
        projection=None if siglip else Linear.Config(),
        text=text,
        loss=SigmoidPairs.Config() if siglip else SoftmaxPairs.Config(),
        foreign=kn.foreign.Names(children={**children, "text": "", "loss": ""}, ignored=_IGNORED),
    )


def _from_hf(config: Foreign, siglip: bool) -> TwoTowers.Config:
    """Returns the model of a `clip` or `siglip` config.json."""
    image, text = config["vision_config"], config["text_config"]
    eps = 1e-6 if siglip else 1e-5
    expect(image, num_channels=3)
    expect(text, layer_norm_eps=image.get("layer_norm_eps", eps))
    usual = "gelu_pytorch_tanh" if siglip else "quick_gelu"
    if siglip:
        expect(text, projection_size=text.get("projection_size", image["hidden_size"]))
    return two_towers(
        siglip=siglip,
        output_dim=image["hidden_size"] if siglip else config["projection_dim"],
        num_layers=image["num_hidden_layers"],
        input_dim=image["hidden_size"],
        num_heads=image["num_attention_heads"],
        hidden_dim=image["intermediate_size"],
        patch_size=image["patch_size"],
        image_size=image["image_size"],
        text_layers=text["num_hidden_layers"],
        text_dim=text["hidden_size"],
        text_heads=text["num_attention_heads"],
        text_hidden_dim=text["intermediate_size"],
        vocab_size=text["vocab_size"],
        max_length=text["max_position_embeddings"],
        end_id=None if siglip else end_of(text),
        image_activation=activation(image.get("hidden_act", usual)),
        text_activation=activation(text.get("hidden_act", usual)),
        norm_eps=image.get("layer_norm_eps", eps),
    )


def end_of(text: Foreign) -> int:
    """Returns the id that ends texts, of a config of texts."""
    end = int(text.get("eos_token_id", 49_407))
    # The first configs name a wrong id, and their models take the largest one, which ends texts.
    return int(text["vocab_size"]) - 1 if end == 2 else end


def text_to_hf(text: Any, output_dim: int, siglip: bool) -> dict[str, Any]:
    """Returns the config of a tower of texts whose vectors have `output_dim` numbers."""
    config = {
        **_tower_to_hf(text, siglip),
        "model_type": "siglip_text_model" if siglip else "clip_text_model",
        "hidden_size": text.input_dim,
        "vocab_size": text.vocab_size,
        "max_position_embeddings": text.positions.max_length,
    }
    return config | ({"projection_size": output_dim} if siglip else {"eos_token_id": text.end_id})


def _tower_to_hf(part: Any, siglip: bool) -> dict[str, Any]:
    layer = part.stack.layer
    return {
        "num_hidden_layers": part.stack.num_layers,
        "num_attention_heads": layer.attention.num_heads,
        "intermediate_size": layer.feed_forward.hidden_dim,
        "hidden_act": activation_name(layer.feed_forward.activation, "gelu_pytorch_tanh" if siglip else "quick_gelu"),
        "layer_norm_eps": part.norm.eps,
    }


def _to_hf(cfg: Any, siglip: bool) -> dict[str, Any]:
    """Returns the inverse of `_from_hf`."""
    image = cfg.image
    size = round((image.positions.max_length - image.class_token) ** 0.5) * image.patches.patch_size
    vision_config = {
        **_tower_to_hf(image, siglip),
        "model_type": "siglip_vision_model" if siglip else "clip_vision_model",
        "hidden_size": cfg.input_dim,
        "patch_size": image.patches.patch_size,
        "image_size": size,
        "num_channels": 3,
    }
    text_config = text_to_hf(cfg.text, cfg.output_dim, siglip)
    keys = {} if siglip else {"projection_dim": cfg.output_dim}
    name = "SiglipModel" if siglip else "CLIPModel"
    return {"architectures": [name], "vision_config": vision_config, "text_config": text_config, **keys}


CLIP = ForeignFamily(partial(_from_hf, siglip=False), partial(_to_hf, siglip=False))
SIGLIP = ForeignFamily(partial(_from_hf, siglip=True), partial(_to_hf, siglip=True))

#: For images of 32 pixels and texts of bytes, to try things out: learns in minutes on a processor.
clip_tiny = partial(
    two_towers, output_dim=64, num_layers=4, input_dim=128, num_heads=4, patch_size=4, image_size=32,
    text_layers=2, text_dim=128, text_heads=4, vocab_size=259, max_length=48, end_id=258,
)  # fmt: skip
#: CLIP ViT-B/32: 151,277,313 parameters.
clip_vit_b_32 = partial(
    two_towers, output_dim=512, num_layers=12, input_dim=768, num_heads=12, patch_size=32, image_size=224,
    text_layers=12, text_dim=512, text_heads=8, vocab_size=49_408, max_length=77, end_id=49_407,
)  # fmt: skip
#: SigLIP B/16 at 224 pixels: 203,155,970 parameters.
siglip_b_16 = partial(
    two_towers, siglip=True, output_dim=768, num_layers=12, input_dim=768, num_heads=12, patch_size=16, image_size=224,
    text_layers=12, text_dim=768, text_heads=12, vocab_size=32_000, max_length=64,
)  # fmt: skip
