"""Gemma 3 with pictures (arXiv:2503.19786, section 2.1): a SigLIP tower, 256 averaged tokens a picture, and Gemma 3."""

from functools import partial
from typing import Any

from kanawa.contracts import ForeignFamily

from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.projectors import AveragedProjector
from kanawa_layers.models.vision import VisionTransformer, image_shape
from kanawa_layers.models.vision_language import VisionLanguageModel, picture_grid
from kanawa_layers.recipes import gemma3 as text
from kanawa_layers.recipes.clip import image_tower
from kanawa_layers.recipes.hf_config import Foreign, activation, activation_name, expect

#: What the released config.json leaves out of `text_config`.
_TEXT = {
    "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
    "max_position_embeddings": 131_072,
}  # fmt: skip
#: And of `vision_config`.
_TOWER = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 16,
}  # fmt: skip


def gemma3_vision(
    tower: VisionTransformer.Config,
    language: DecoderLM.Config,
    *,
    tower_dim: int,
    tokens_per_side: int = 16,
    image_token_id: int = 262_144,
    begin_id: int = 255_999,
    end_id: int = 256_000,
    norm_eps: float = 1e-6,
) -> VisionLanguageModel.Config:
    """Returns a model of a SigLIP tower of width `tower_dim` and a Gemma 3, with tokens_per_side ** 2 a picture."""
    return VisionLanguageModel.Config(
        vocab_size=language.vocab_size,
        input_dim=language.input_dim,
        image_token_id=image_token_id,
        mark_id=begin_id,
        written=("\n\n", begin_id, image_token_id, end_id, "\n\n"),
        both_ways=True,
        tower_dim=tower_dim,
        tower=tower,
        projector=AveragedProjector.Config(
            window=picture_grid(tower)[0] // tokens_per_side, norm=RMSNorm.Config(eps=norm_eps, zero_centered=True)
        ),
        language=language,
    )


def _from_hf(config: Foreign) -> VisionLanguageModel.Config:
    """Returns the model of a `gemma3` config.json."""
    image, words = {**_TOWER, **config["vision_config"]}, {**_TEXT, **config["text_config"]}
    expect(image, model_type="siglip_vision_model", num_channels=3)
    expect(words, model_type="gemma3_text")
    eps = image.get("layer_norm_eps", 1e-6)
    tower = image_tower(
        siglip=True,
        num_layers=image["num_hidden_layers"],
        input_dim=image["hidden_size"],
        num_heads=image["num_attention_heads"],
        hidden_dim=image["intermediate_size"],
        patch_size=image["patch_size"],
        image_size=image["image_size"],
        activation=activation(image.get("hidden_act", "gelu_pytorch_tanh")),
        norm_eps=eps,
    )
    return gemma3_vision(
        tower,
        text.from_hf(words),
        tower_dim=image["hidden_size"],
        tokens_per_side=round(config.get("mm_tokens_per_image", 256) ** 0.5),
        image_token_id=config.get("image_token_index", 262_144),
        begin_id=config.get("boi_token_index", 255_999),
        end_id=config.get("eoi_token_index", 256_000),
        norm_eps=eps,
    )


def _to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `_from_hf`."""
    tower, layer = cfg.tower, cfg.tower.stack.layer
    _, begin_id, _, end_id, _ = cfg.written
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": cfg.tower_dim,
            "num_hidden_layers": tower.stack.num_layers,
            "num_attention_heads": layer.attention.num_heads,
            "intermediate_size": layer.feed_forward.hidden_dim,
            "hidden_act": activation_name(layer.feed_forward.activation, "gelu_pytorch_tanh"),
            "layer_norm_eps": tower.norm.eps,
            "patch_size": tower.patches.patch_size,
            "image_size": image_shape(tower)["images"][0],
            "num_channels": 3,
            "vision_use_head": False,
        },
        "text_config": {"model_type": "gemma3_text", **text.to_hf(cfg.language)},
        "mm_tokens_per_image": (picture_grid(tower)[0] // cfg.projector.window) ** 2,
        "image_token_index": cfg.image_token_id,
        "boi_token_index": begin_id,
        "eoi_token_index": end_id,
        "tie_word_embeddings": True,
    }


FAMILY = ForeignFamily(_from_hf, _to_hf)


def _released(language: partial[DecoderLM.Config]) -> VisionLanguageModel.Config:
    tower = image_tower(
        siglip=True, num_layers=27, input_dim=1152, num_heads=16, hidden_dim=4304, patch_size=14, image_size=896
    )
    return gemma3_vision(tower, language(), tower_dim=1152)


#: Gemma 3 4B with its tower: 4,300,079,472 parameters.
gemma3_4b_vision = partial(_released, text.gemma3_4b)
#: Gemma 3 12B with its tower: 12,187,325,040 parameters.
gemma3_12b_vision = partial(_released, text.gemma3_12b)
#: Gemma 3 27B with its tower: 27,432,406,640 parameters.
gemma3_27b_vision = partial(_released, text.gemma3_27b)
