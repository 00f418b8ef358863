"""The model that a model with fused projections computes: other libraries' configs have only separate ones."""

from kanawa.config import Config, replace

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.feedforward.fused_gated import FusedGatedFeedForward
from kanawa_layers.feedforward.gated import GatedFeedForward


def with_projections_apart(model: Config) -> Config:
    """Returns a copy in which each fused projection is its parts: the same function, under the same foreign names.

    Each part gets the fused one's bias, initialisation and adapter.
    """
    model = model.clone()
    replace(model, target=GroupedQueryAttention, edit=_attention, allow_none=True)
    replace(model, target=FusedGatedFeedForward, edit=_feed_forward, allow_none=True)
    return model


def _attention(node: GroupedQueryAttention.Config) -> None:
    if node.qkv is not None:
        node.set(qkv=None, **{name: node.qkv.clone() for name in ("query", "key", "value")})


def _feed_forward(node: FusedGatedFeedForward.Config) -> Config:
    kept = {name: getattr(node, name) for name in ("input_dim", "hidden_dim", "activation", "gating", "down")}
    return GatedFeedForward.Config(gate=node.gate_up, up=node.gate_up.clone(), **kept)
