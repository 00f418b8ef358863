"""How a branch is added to the residual stream: adapter, dropout and scale of its output."""

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.arrays.broadcast import along_last
from kanawa.arrays.init import Constant
from kanawa.arrays.materialize import row_major

from kanawa_layers.basic.dropout import Dropout, StochasticDepth
from kanawa_layers.feedforward.bottleneck import Bottleneck


class Residual(kn.Module):
    """x + scale * drop(adapt(y)), in x's dtype. By default just x + y, with no parameters.

    `scale` is a constant (Granite, MiniCPM), `layer_scale` the initial value of a learned one per channel (CaiT,
    Touvron et al. 2021, arXiv:2103.17239), `adapter` a bottleneck, `stochastic_depth` drops the branch.
    """

    adapter: Bottleneck | None
    dropout: Dropout | None
    stochastic_depth: StochasticDepth | None

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        scale: kn.Finite = 1.0
        layer_scale: kn.Finite | None = None
        adapter: Bottleneck.Config | None = None
        dropout: Dropout.Config | None = None
        stochastic_depth: StochasticDepth.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"gamma": "gamma"}, children={"adapter": "adapter"})

    def setup(self) -> None:
        """Declares the parts that are there."""
        cfg = self.config
        self.add_child("adapter", cfg.adapter, input_dim=cfg.input_dim)
        self.add_child("dropout", cfg.dropout)
        self.add_child("stochastic_depth", cfg.stochastic_depth)
        if cfg.layer_scale is not None:
            init = Constant(cfg.layer_scale)
            self.add_param("gamma", (cfg.input_dim,), axes=("norm",), init=init, weight_decay=0.0)

    def forward(self, x: Float[Array, "B T E"], y: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        """Returns the stream `x` with the branch's output `y` added."""
        cfg = self.config
        for part in (self.adapter, self.dropout, self.stochastic_depth):
            y = y if part is None else part(y)
        if cfg.layer_scale is not None:
            y = y * along_last(self.param("gamma"), y.ndim)
        x = x + (y if cfg.scale == 1.0 else y * jnp.asarray(cfg.scale, y.dtype))
        return row_major(x)
