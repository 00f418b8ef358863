"""What GPT-2, BERT and ViT have in common: biased projections, multi-head attention, learned positions."""

from collections.abc import Callable
from typing import Any

import kanawa as kn

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.masks import Causal, Mask
from kanawa_layers.basic.linear import Linear
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.positions.none import NoPositions


def biased_parts(
    linear: Linear.Config,
    *,
    num_heads: int,
    hidden_dim: int,
    activation: Callable[..., Any],
    attention: kn.foreign.Names,
    feed_forward: kn.foreign.Names,
    mask: Mask.Config | None = None,
) -> tuple[GroupedQueryAttention.Config, PlainFeedForward.Config]:
    """Returns a block's attention and feed-forward; `attention` and `feed_forward` are their tensors' names."""
    mixer = GroupedQueryAttention.Config(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        mask=mask or Causal.Config(),
        query=linear,
        key=linear,
        value=linear,
        output=linear,
        positions=NoPositions.Config(),
        foreign=attention,
    )
    return mixer, PlainFeedForward.Config(
        hidden_dim=hidden_dim, activation=activation, up=linear, down=linear, foreign=feed_forward
    )
