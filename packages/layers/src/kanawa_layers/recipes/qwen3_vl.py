"""Qwen3-VL (arXiv:2511.21631, the released configs): a tower of any picture size, merged patches, DeepStack, M-RoPE."""

from functools import partial
from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.masks import Bidirectional
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.basic.patches import FramePatchEmbedding
from kanawa_layers.feedforward.activations import gelu_tanh
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.grid_tower import GridTower, InterpolatedPositions
from kanawa_layers.models.projectors import DeepStackProjector, PatchMerger
from kanawa_layers.models.vision_language import VisionLanguageModel
from kanawa_layers.positions.multi_axis import AxialRotary, RotaryInTurn
from kanawa_layers.recipes import qwen3, qwen3_moe
from kanawa_layers.recipes.biased import biased_stack
from kanawa_layers.recipes.hf_config import Foreign, activation, activation_name, expect
from kanawa_layers.stack.deepstack import DeepStack
from kanawa_layers.stack.residual_blocks import PreNormBlock
from kanawa_layers.stack.tapped import TappedStack

#: [experts, in, out], where torch's Linear is [out, in]; gate and up side by side.
_IN_OUT = kn.foreign.Matrix.Config(transposed=False)
_EXPERTS = kn.foreign.Names(
    tensors={
        "gate": kn.foreign.Tensor(form=_IN_OUT),
        "up": kn.foreign.Tensor(form=_IN_OUT),
        "down": kn.foreign.Tensor(name="down_proj", form=_IN_OUT),
    },
    joined=(kn.foreign.Joined(name="gate_up_proj", parts=("gate", "up"), axis=-1),),
)
_ATTENTION = kn.foreign.Names(
    children={"output": "proj", "positions": ""},
    joined=(kn.foreign.Joined(name="qkv", parts=("query", "key", "value")),),
)
_BLOCK = kn.foreign.Names(
    children={
        "attention": "attn",
        "attention_norm": "norm1",
        "feed_forward": "mlp",
        "feed_forward_norm": "norm2",
    }
)
_TOWER = kn.foreign.Names(children={"patches": "patch_embed", "positions": "pos_embed", "stack": ""})
_LANGUAGE = kn.foreign.Names(
    children={
        "embedding": "model.language_model.embed_tokens",
        "stack": "model.language_model",
        "norm": "model.language_model.norm",
        "head": "lm_head",
    }
)
_MODEL = kn.foreign.Names(children={"tower": "model.visual", "projector": "model.visual", "language": ""})
#: Tokens of the released models.
_IMAGE, _VIDEO, _BEGIN, _END = 151_655, 151_656, 151_652, 151_653


def grid_tower(
    *,
    num_layers: int,
    num_heads: int,
    hidden_dim: int,
    patch_size: int = 16,
    side: int = 48,
    taps: tuple[int, ...] = (8, 16, 24),
    picture_size: tuple[int, int] = (512, 512),
    theta: float = 10_000.0,
) -> GridTower.Config:
    """Returns a tower of any size; `side` is that of the learned grid of positions."""
    blocks = biased_stack(
        PreNormBlock.Config,
        "blocks.{}",
        num_layers=num_layers,
        num_heads=num_heads,
        hidden_dim=hidden_dim,
        norm=LayerNorm.Config(eps=1e-6),
        activation=gelu_tanh,
        mask=Bidirectional.Config(),
        attention=_ATTENTION,
        feed_forward=kn.foreign.Names(children={"up": "linear_fc1", "down": "linear_fc2"}),
        foreign=_BLOCK,
    )
    blocks.layer.attention.set(positions=AxialRotary.Config(theta=theta))
    return GridTower.Config(
        picture_size=picture_size,
        patches=FramePatchEmbedding.Config(patch_size=patch_size),
        positions=InterpolatedPositions.Config(side=side),
        stack=TappedStack.Config(num_layers=num_layers, layer=blocks.layer, taps=taps, foreign=blocks.foreign),
        foreign=_TOWER,
    )


def qwen3_vl(
    tower: GridTower.Config,
    language: DecoderLM.Config,
    *,
    tower_dim: int,
    sections: tuple[int, ...] = (24, 20, 20),
    window: int = 2,
    image_token_id: int = _IMAGE,
) -> VisionLanguageModel.Config:
    """Returns a model of a tower of width `tower_dim` and a Qwen3, dense or a mixture, that gets DeepStack and M-RoPE.

    The chat template writes begin and end of a picture.
    """
    stack: Any = language.stack
    layer = stack.layer.clone()
    turning = layer.attention.positions
    layer.attention.set(
        positions=RotaryInTurn.Config(theta=turning.theta, trained_length=turning.trained_length, sections=sections)
    )
    if "experts" in layer.feed_forward.fields():
        layer.feed_forward.experts.set(foreign=_EXPERTS)
    language = language.clone().set(stack=DeepStack.Config(num_layers=stack.num_layers, layer=layer), foreign=_LANGUAGE)
    early = tuple(PatchMerger.Config(norm_window=True) for _ in tower.stack.taps)
    return VisionLanguageModel.Config(
        vocab_size=language.vocab_size,
        input_dim=language.input_dim,
        image_token_id=image_token_id,
        grid_coordinates=True,
        tower_dim=tower_dim,
        tower=tower,
        projector=DeepStackProjector.Config(window=window, early=early),
        language=language,
        foreign=_MODEL,
    )


def _from_hf(config: Foreign, text: Any) -> VisionLanguageModel.Config:
    """Returns the model of a `qwen3_vl` or `qwen3_vl_moe` config.json; `text` reads the language model's."""
    image, words = config["vision_config"], dict(config["text_config"])
    rope = {**(words.get("rope_scaling") or {}), **(words.get("rope_parameters") or {})}
    expect(image, in_channels=3, temporal_patch_size=2, out_hidden_size=words["hidden_size"])
    expect(rope, rope_type="default", mrope_interleaved=True)
    words.setdefault("tie_word_embeddings", config.get("tie_word_embeddings", False))
    tower = grid_tower(
        num_layers=image["depth"],
        num_heads=image["num_heads"],
        hidden_dim=image["intermediate_size"],
        patch_size=image["patch_size"],
        side=round(image["num_position_embeddings"] ** 0.5),
        taps=tuple(image["deepstack_visual_indexes"]),
        theta=float((image.get("rope_parameters") or {}).get("rope_theta", 10_000.0)),
        # Ours: released configs leave a picture's size to the processor.
        picture_size=tuple(image.get("image_size", (512, 512))),
    )
    name = image.get("hidden_act", "gelu_pytorch_tanh")
    tower.stack.layer.feed_forward.set(activation=activation(name))
    return qwen3_vl(
        tower,
        text.from_hf(words),
        tower_dim=image["hidden_size"],
        sections=tuple(rope.get("mrope_section", (24, 20, 20))),
        window=image.get("spatial_merge_size", 2),
        image_token_id=config.get("image_token_id", _IMAGE),
    )


def _to_hf(cfg: Any, text: Any, kind: str) -> dict[str, Any]:
    """Returns the inverse of `_from_hf`."""
    tower, stack = cfg.tower, cfg.tower.stack
    turning = cfg.language.stack.layer.attention.positions
    words = text.to_hf(cfg.language)
    words["rope_scaling"] = {
        "rope_type": "default",
        "mrope_section": list(turning.sections),
        "mrope_interleaved": True,
    }
    name = {"qwen3_vl": "Qwen3VLForConditionalGeneration", "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration"}[kind]
    released = cfg.image_token_id == _IMAGE
    return {
        "architectures": [name],
        "vision_config": {
            "model_type": f"{kind}_vision" if kind != "qwen3_vl" else "qwen3_vl_vision",
            "depth": stack.num_layers,
            "hidden_size": cfg.tower_dim,
            "num_heads": stack.layer.attention.num_heads,
            "intermediate_size": stack.layer.feed_forward.hidden_dim,
            "hidden_act": activation_name(stack.layer.feed_forward.activation, "gelu_pytorch_tanh"),
            "patch_size": tower.patches.patch_size,
            "temporal_patch_size": tower.patches.num_frames,
            "in_channels": tower.patches.num_channels,
            "spatial_merge_size": cfg.projector.window,
            "out_hidden_size": cfg.input_dim,
            "num_position_embeddings": tower.positions.side**2,
            "deepstack_visual_indexes": list(stack.taps),
            "image_size": list(tower.picture_size),
        },
        "text_config": {"model_type": f"{kind}_text", **words},
        "image_token_id": cfg.image_token_id,
        **(
            {"video_token_id": _VIDEO, "vision_start_token_id": _BEGIN, "vision_end_token_id": _END} if released else {}
        ),
        "tie_word_embeddings": words["tie_word_embeddings"],
    }


DENSE = ForeignFamily(partial(_from_hf, text=qwen3), partial(_to_hf, text=qwen3, kind="qwen3_vl"))
MIXTURE = ForeignFamily(partial(_from_hf, text=qwen3_moe), partial(_to_hf, text=qwen3_moe, kind="qwen3_vl_moe"))


def _released(language: Any, small: bool = False) -> VisionLanguageModel.Config:
    sizes: dict[str, Any] = {"num_layers": 27, "hidden_dim": 4304}
    if small:
        sizes = {"num_layers": 24, "hidden_dim": 4096, "taps": (5, 11, 17)}
    made = language()
    made.stack.layer.attention.positions.set(theta=5_000_000.0, trained_length=262_144)
    return qwen3_vl(grid_tower(num_heads=16, **sizes), made, tower_dim=1024 if small else 1152)


#: Qwen3-VL 2B: 2,127,532,032 parameters, tied.
qwen3_vl_2b = partial(_released, qwen3.qwen3_17b, small=True)
#: Qwen3-VL 4B: 4,437,815,808 parameters, tied.
qwen3_vl_4b = partial(_released, qwen3.qwen3_4b, small=True)
#: Qwen3-VL 8B: 8,767,123,696 parameters.
qwen3_vl_8b = partial(_released, qwen3.qwen3_8b)
#: Qwen3-VL 30B-A3B: 31,070,754,032 parameters, 3B of them active.
qwen3_vl_30b_a3b = partial(_released, qwen3_moe.qwen3_30b_a3b)
