"""What stacks of equal blocks share: parameters of all layers in one, and a loop over any part of them."""

from typing import Any

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Block, RematPolicy, Sequences, Stack
from kanawa.module import unstack

#: Parameters, state and outputs of all layers live under this one child.
LAYER = "layer"


class EqualBlocks(Stack):
    """`num_layers` copies of one block with stacked `[layers, …]` parameters; a subclass says which run, and caches.

    `scan` compiles one layer and loops; without it, the layers are written out, which compiles longer and lets the
    compiler fuse across them. `remat` says what the backward pass recomputes.
    """

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
        self.add_child(LAYER, cfg.layer, stacked=cfg.num_layers, input_dim=cfg.input_dim)
        self.add_child("remat", cfg.remat)

    def run(
        self, x: Float[Array, "B T E"], sequences: Sequences, start: int = 0, length: int | None = None
    ) -> Float[Array, "B T E"]:
        """Returns the residual stream after `length` layers (None: all) from `start` on, without caches."""

        def body(carry: Float[Array, "B T E"], _: None) -> tuple[Float[Array, "B T E"], None]:
            y, _cache = self.layer(self.tag("layer_input", carry), sequences)
            return y, None

        remat = False if self.remat is None else self.remat.policy()
        options: dict[str, Any] = {"start": start, "length": length, "unrolled": not self.config.scan}
        x, _ = kn.scan(body, x, over=LAYER, remat=remat, **options)
        return x

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns the parameters with `layer` as a tuple of per-layer trees."""
        return {**params, LAYER: unstack(params[LAYER], self.config.num_layers)}
