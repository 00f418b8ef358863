"""What stacks of equal blocks share that run a part of their layers, and have no cache: those of encoders."""

from typing import Any

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Block, RematPolicy, Sequences, Stack
from kanawa.module import unstack

_LAYER = "layer"


class CachelessStack(Stack):
    """Equal blocks, each of which sees all tokens at once. A subclass says which of them `forward` runs."""

    layer: Block
    remat: RematPolicy | None

    class Config(Stack.Config):
        PLACEMENT = ("scan", "remat")

        layer: Block.Config = kn.REQUIRED
        scan: bool = True
        remat: RematPolicy.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(children={"layer": "layers.{}"})

    def setup(self) -> None:
        """Declares the stacked layer."""
        cfg = self.config
        self.add_child(_LAYER, cfg.layer, stacked=cfg.num_layers, input_dim=cfg.input_dim)
        self.add_child("remat", cfg.remat)

    def run(self, x: Float[Array, "B T E"], sequences: Sequences, start: int, length: int) -> Float[Array, "B T E"]:
        """Returns the residual stream after `length` layers from `start` on."""

        def body(carry: Float[Array, "B T E"], _: None) -> tuple[Float[Array, "B T E"], None]:
            y, _cache = self.layer(self.tag("layer_input", carry), sequences)
            return y, None

        remat = False if self.remat is None else self.remat.policy()
        options: dict[str, Any] = {"start": start, "length": length, "unrolled": not self.config.scan}
        x, _ = kn.scan(body, x, over=_LAYER, remat=remat, **options)
        return x

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> tuple[Any, ...]:
        """Returns nothing: what sees all tokens at once has no cache."""
        del rows, length, dtype
        return ()

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns the parameters with `layer` as a tuple of per-layer trees."""
        return {**params, _LAYER: unstack(params[_LAYER], self.config.num_layers)}
