"""CoCa (Yu et al. 2022, arXiv:2205.01917, table 1): CLIP's towers, and a decoder that writes what a picture shows."""

from functools import partial

import kanawa as kn

from kanawa_layers.attention.cross import CrossAttention
from kanawa_layers.attention.masks import Causal
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.feedforward.activations import gelu_tanh
from kanawa_layers.models.coca import CoCa, QueryPooling
from kanawa_layers.models.encoder_decoder import Tower
from kanawa_layers.recipes.biased import biased_stack
from kanawa_layers.recipes.clip import two_towers
from kanawa_layers.stack.residual_blocks import CrossPreNormBlock


def coca(
    *,
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
    end_id: int,
    num_queries: int = 256,
) -> CoCa.Config:
    """Returns a CoCa of any size: `text_layers` layers see no picture, and as many above them do."""
    linear, norm = Linear.Config(bias=True), LayerNorm.Config(eps=1e-5)
    attention = CrossAttention.Config(num_heads=text_heads, query=linear, key=linear, value=linear, output=linear)
    towers = two_towers(
        output_dim=output_dim, num_layers=num_layers, input_dim=input_dim, num_heads=num_heads, hidden_dim=hidden_dim,
        patch_size=patch_size, image_size=image_size, text_layers=text_layers, text_dim=text_dim,
        text_heads=text_heads, text_hidden_dim=text_hidden_dim, vocab_size=vocab_size, max_length=max_length,
        end_id=end_id, image_activation=gelu_tanh, text_activation=gelu_tanh,
    )  # fmt: skip
    stack = biased_stack(
        partial(CrossPreNormBlock.Config, cross_attention=attention, cross_attention_norm=norm),
        "layers.{}",
        num_layers=text_layers,
        num_heads=text_heads,
        hidden_dim=text_hidden_dim or 4 * text_dim,
        norm=norm,
        activation=gelu_tanh,
        mask=Causal.Config(),
        attention=kn.foreign.Names(),
        feed_forward=kn.foreign.Names(),
    )
    pool = QueryPooling.Config(num_queries=num_queries, attention=attention.clone().set(memory_dim=input_dim))
    return CoCa.Config(towers=towers, pool=pool, decoder=Tower.Config(stack=stack, norm=norm))


#: For images of 32 pixels and texts of bytes, to try things out: learns in minutes on a processor.
coca_tiny = partial(
    coca, output_dim=64, num_layers=4, input_dim=128, num_heads=4, patch_size=4, image_size=32, text_layers=2,
    text_dim=128, text_heads=4, vocab_size=259, max_length=48, end_id=258, num_queries=16,
)  # fmt: skip
#: CoCa-Base with CLIP's vocabulary and its class token; the paper's has its own, and pools for both losses.
coca_base = partial(
    coca, output_dim=768, num_layers=12, input_dim=768, num_heads=12, patch_size=18, image_size=288, text_layers=12,
    text_dim=768, text_heads=12, vocab_size=49_408, max_length=77, end_id=49_407,
)  # fmt: skip
