"""`feed-forward-bias` and `fused-gate-up`: how the projections of feed-forwards are made."""

from typing import Any

import sashimono as sm
from sashimono.contracts import FeedForward

from sashimono_layers.basic.linear import Linear
from sashimono_layers.feedforward.fused_gated import FusedGatedFeedForward
from sashimono_layers.feedforward.gated import GatedFeedForward
from sashimono_layers.moe.experts import Experts


class FeedForwardBias(sm.Modifier):
    """`feed-forward-bias`: every projection of a feed-forward, experts included, gets a bias, or loses it."""

    class Config(sm.Modifier.Config):
        bias: bool = True
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with the biases."""
        bias = self.config.bias

        def edit(node: Any) -> None:
            if isinstance(node, Experts.Config):
                node.set(bias=bias)
                return
            for name in node.fields():
                # The gate of a shared feed-forward decides; it isn't a projection of it.
                if isinstance(getattr(node, name), Linear.Config) and name != "shared_gate":
                    getattr(node, name).set(bias=bias)

        sm.replace(cfg, target=(FeedForward, Experts), edit=edit, where=self.config.where)
        return cfg


class FusedGateUp(sm.Modifier):
    """`fused-gate-up`: gate and up of every gated feed-forward become one product."""

    class Config(sm.Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with the fused kind."""

        def edit(node: GatedFeedForward.Config) -> sm.Config:
            kept = {name: getattr(node, name) for name in ("input_dim", "hidden_dim", "activation", "gating", "down")}
            return FusedGatedFeedForward.Config(gate_up=node.gate, **kept)

        sm.replace(cfg, target=GatedFeedForward, edit=edit, where=self.config.where)
        return cfg
