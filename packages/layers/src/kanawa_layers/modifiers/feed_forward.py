"""`feed-forward-bias` and `fused-gate-up`: how the projections of feed-forwards are made."""

from typing import Any

import kanawa as kn
from kanawa.contracts import FeedForward

from kanawa_layers.basic.linear import Linear
from kanawa_layers.feedforward.fused_gated import FusedGatedFeedForward
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.moe.experts import Experts


class FeedForwardBias(kn.Modifier):
    """`feed-forward-bias`: every projection of a feed-forward, experts included, gets a bias, or loses it."""

    class Config(kn.Modifier.Config):
        bias: bool = True
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the biases."""
        bias = self.config.bias

        def edit(node: Any) -> None:
            if isinstance(node, Experts.Config):
                node.set(bias=bias)
                return
            for name in node.fields():
                # The gate of a shared feed-forward isn't one of its projections.
                if isinstance(getattr(node, name), Linear.Config) and name != "shared_gate":
                    getattr(node, name).set(bias=bias)

        kn.replace(cfg, target=(FeedForward, Experts), edit=edit, where=self.config.where)
        return cfg


class FusedGateUp(kn.Modifier):
    """`fused-gate-up`: gate and up of every gated feed-forward become one matmul."""

    class Config(kn.Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the fused kind."""

        def edit(node: GatedFeedForward.Config) -> kn.Config:
            # The fused weight has the gate's initialisation, form and adapter; those of `up` are dropped.
            fields = {name: getattr(node, name) for name in ("input_dim", "hidden_dim", "activation", "gating", "down")}
            return FusedGatedFeedForward.Config(gate_up=node.gate, **fields)

        kn.replace(cfg, target=GatedFeedForward, edit=edit, where=self.config.where)
        return cfg
