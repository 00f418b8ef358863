"""Granite 3 and 4, dense (IBM 2024, the released configs): Llama with four constant multipliers."""

from typing import Any

from kanawa.contracts import ForeignConfigError, ForeignFamily

from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import Foreign, expect
from kanawa_layers.recipes.llama import llama, llama_from, llama_keys, sized


def granite(
    *,
    embedding_scale: float = 12.0,
    residual_scale: float = 0.22,
    score_scale: float = 0.015625,
    logit_divisor: float = 8.0,
    vocab_size: int = 49_155,
    tied: bool = True,
    **shape: Any,
) -> DecoderLM.Config:
    """Returns a Granite of any size; `shape` as for `llama`.

    Embeddings and what a branch adds are multiplied, scores are multiplied by `score_scale`, logits are divided.
    """
    shape.setdefault("positions", Rotary.Config(theta=10_000_000.0, trained_length=131_072))
    cfg = llama(vocab_size=vocab_size, tied=tied, **shape)
    cfg.embedding.set(scale=embedding_scale)
    cfg.head.set(logit_scale=1.0 / logit_divisor)
    cfg.stack.layer.attention.set(scale=score_scale)
    for branch in (cfg.stack.layer.attention_residual, cfg.stack.layer.feed_forward_residual):
        branch.set(scale=residual_scale)
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `granite` config.json."""
    expect(config, attention_bias=False, mlp_bias=False)
    return llama_from(
        config,
        granite,
        embedding_scale=float(config.get("embedding_multiplier", 1.0)),
        residual_scale=float(config.get("residual_multiplier", 1.0)),
        score_scale=float(config.get("attention_multiplier", 1.0)),
        logit_divisor=float(config.get("logits_scaling", 1.0)),
    )


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    layer = cfg.stack.layer
    if layer.attention.scale is None:
        message = "scores are scaled by the width of a head, and not by a constant"
        raise ForeignConfigError(message)
    keys = {
        **llama_keys(cfg, "GraniteForCausalLM"),
        "embedding_multiplier": cfg.embedding.scale,
        "residual_multiplier": layer.attention_residual.scale,
        "attention_multiplier": layer.attention.scale,
        "logits_scaling": 1.0 / cfg.head.logit_scale,
    }
    # GraniteConfig has no such field: heads are width / num_heads.
    del keys["head_dim"]
    return keys


FAMILY = ForeignFamily(from_hf, to_hf)

#: Granite 3.3 2B: 2,533,539,840 parameters, tied.
granite33_2b = sized(granite, 40, 2048, 32, 8, 8192, vocab_size=49_159)
#: Granite 3.3 8B: 8,170,864,640 parameters, tied.
granite33_8b = sized(granite, 40, 4096, 32, 8, 12_800, vocab_size=49_159, score_scale=0.0078125, logit_divisor=16.0)
