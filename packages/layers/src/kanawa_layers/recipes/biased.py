"""What GPT-2, BERT and ViT have in common: biased projections, multi-head attention, learned positions."""

from collections.abc import Callable
from typing import Any

import kanawa as kn
from kanawa.contracts import Block

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.masks import Mask
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.positions.biases import NoPositions
from kanawa_layers.stack.repeated import RepeatedStack


def biased_stack(
    block: Callable[..., Block.Config],
    label: str,
    *,
    num_layers: int,
    num_heads: int,
    hidden_dim: int,
    norm: LayerNorm.Config,
    activation: Callable[..., Any],
    mask: Mask.Config,
    attention: kn.foreign.Names,
    feed_forward: kn.foreign.Names,
    linear: Linear.Config | None = None,
    **names: kn.foreign.Names,
) -> RepeatedStack.Config:
    """Returns a stack of such blocks; `label`, `attention`, `feed_forward` and `foreign` are their tensors' names."""
    linear = linear or Linear.Config(bias=True)
    mixer = GroupedQueryAttention.Config(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        mask=mask,
        query=linear,
        key=linear,
        value=linear,
        output=linear,
        positions=NoPositions.Config(),
        foreign=attention,
    )
    layer = block(
        attention=mixer,
        feed_forward=PlainFeedForward.Config(
            hidden_dim=hidden_dim, activation=activation, up=linear, down=linear, foreign=feed_forward
        ),
        attention_norm=norm,
        feed_forward_norm=norm,
        **names,
    )
    return RepeatedStack.Config(num_layers=num_layers, layer=layer, foreign=kn.foreign.Names(children={"layer": label}))
