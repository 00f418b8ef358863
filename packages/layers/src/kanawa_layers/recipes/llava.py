"""LLaVA 1.5 (Liu et al. 2023, arXiv:2310.03744): a CLIP tower's last layer but one, a projector, and a Llama."""

from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignConfigError, ForeignFamily
from kanawa.plugins import component

from kanawa_layers.feedforward.activations import gelu_exact
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.projectors import PictureProjector
from kanawa_layers.models.vision import VisionTransformer
from kanawa_layers.models.vision_language import VisionLanguageModel
from kanawa_layers.recipes.clip import image_tower
from kanawa_layers.recipes.hf_config import Foreign, activation, activation_name, expect
from kanawa_layers.recipes.llama import llama
from kanawa_layers.stack.earlier_layer import EarlierLayerStack

#: Families of language models that a folder may have, the first that expresses a model writes it.
_LANGUAGES = ("llama", "mistral", "qwen2")
#: What the released config.json leaves out: Llama 7B.
_LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "rms_norm_eps": 1e-6, "vocab_size": 32_000,
}  # fmt: skip
#: And the tower's: CLIP ViT-L/14 at 336 pixels.
_TOWER = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "image_size": 336, "patch_size": 14,
}  # fmt: skip


def earlier_tower(tower: VisionTransformer.Config, skipped: int) -> VisionTransformer.Config:
    """Returns a CLIP tower that ends `skipped` layers before its last, with the parameters of all of them."""
    stack: Any = tower.stack
    names = {"stack": "", "norm": ""}
    children = {**tower.foreign.children, **names}
    return tower.clone().set(
        norm=None,
        stack=EarlierLayerStack.Config(
            num_layers=stack.num_layers,
            layer=stack.layer,
            skipped=skipped,
            norm=tower.norm,
            foreign=kn.foreign.Names(children={"layer": "encoder.layers.{}", "norm": "post_layernorm"}),
        ),
        foreign=tower.foreign.clone().set(children=children),
    )


def llava(
    tower: VisionTransformer.Config, language: DecoderLM.Config, *, tower_dim: int, image_token_id: int
) -> VisionLanguageModel.Config:
    """Returns a model of a tower of width `tower_dim` and a language model, under LLaVA's names."""
    return VisionLanguageModel.Config(
        vocab_size=language.vocab_size,
        input_dim=language.input_dim,
        image_token_id=image_token_id,
        tower_dim=tower_dim,
        tower=tower,
        projector=PictureProjector.Config(activation=gelu_exact),
        language=language,
    )


def _from_hf(config: Foreign) -> VisionLanguageModel.Config:
    """Returns the model of a `llava` config.json."""
    image, text = {**_TOWER, **config["vision_config"]}, {**_LLAMA, **config["text_config"]}
    expect(config, vision_feature_select_strategy="default", multimodal_projector_bias=True)
    expect(image, model_type="clip_vision_model", num_channels=3)
    if text["model_type"] not in _LANGUAGES:
        expect(text, model_type=_LANGUAGES[0])
    layer = config.get("vision_feature_layer", -2)
    if not isinstance(layer, int) or not -image["num_hidden_layers"] <= layer <= -2:
        message = f"vision_feature_layer is {layer!r}, expected one layer counted from the last, -2 or before"
        raise ForeignConfigError(message)
    tower = image_tower(
        num_layers=image["num_hidden_layers"],
        input_dim=image["hidden_size"],
        num_heads=image["num_attention_heads"],
        hidden_dim=image["intermediate_size"],
        patch_size=image["patch_size"],
        image_size=image["image_size"],
        activation=activation(image.get("hidden_act", "quick_gelu")),
        norm_eps=image.get("layer_norm_eps", 1e-5),
    )
    made = llava(
        earlier_tower(tower, -layer - 1),
        component("hf_families", text["model_type"], asker="kanawa-layers").from_foreign(text),
        tower_dim=image["hidden_size"],
        image_token_id=config.get("image_token_index", config.get("image_token_id", 32_000)),
    )
    made.projector.set(activation=activation(config.get("projector_hidden_act", "gelu")))
    return made


def _to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `_from_hf`."""
    tower, stack = cfg.tower, cfg.tower.stack
    side = round((tower.positions.max_length - 1) ** 0.5)
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": cfg.tower_dim,
        "num_hidden_layers": stack.num_layers,
        "num_attention_heads": stack.layer.attention.num_heads,
        "intermediate_size": stack.layer.feed_forward.hidden_dim,
        "hidden_act": activation_name(stack.layer.feed_forward.activation, "quick_gelu"),
        "layer_norm_eps": stack.norm.eps,
        "patch_size": tower.patches.patch_size,
        "image_size": side * tower.patches.patch_size,
        "num_channels": 3,
    }
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "vision_config": vision,
        "text_config": _text_config(cfg.language),
        "image_token_index": cfg.image_token_id,
        "image_seq_length": side**2,
        "projector_hidden_act": activation_name(cfg.projector.activation, "gelu"),
        "multimodal_projector_bias": True,
        "vision_feature_layer": -stack.skipped - 1,
        "vision_feature_select_strategy": "default",
        "tie_word_embeddings": False,
    }


def _text_config(language: DecoderLM.Config) -> dict[str, Any]:
    for kind in _LANGUAGES:
        family = component("hf_families", kind, asker="kanawa-layers")
        try:
            text = {"model_type": kind, **family.to_foreign(language)}
            if family.from_foreign(text) == language:
                return text
        except (ForeignConfigError, AttributeError, LookupError, TypeError, ValueError):
            continue
    message = f"the language model is of none of LLaVA's families: {', '.join(_LANGUAGES)}"
    raise ForeignConfigError(message)


FAMILY = ForeignFamily(_from_hf, _to_hf)


def llava_15_7b() -> VisionLanguageModel.Config:
    """Returns LLaVA 1.5 7B as released: a CLIP ViT-L/14 at 336 pixels and Vicuna 7B, 7,063,427,072 parameters."""
    return _from_hf({"vision_config": {}, "text_config": {"rms_norm_eps": 1e-5, "vocab_size": 32_064}})


def vlm_tiny() -> VisionLanguageModel.Config:
    """Returns a model for pictures of 32 pixels that learns on a laptop: bytes and a picture token, width 128."""
    tower = image_tower(num_layers=3, input_dim=128, num_heads=4, patch_size=4, image_size=32)
    language = llama(
        num_layers=3, input_dim=128, num_heads=4, num_kv_heads=4, hidden_dim=384, vocab_size=260, tied=True
    )
    language.embedding.set(init_stddev=128**-0.5)
    return llava(earlier_tower(tower, 1), language, tower_dim=128, image_token_id=259)
