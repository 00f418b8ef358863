"""A stack of equal blocks, scanned or written out; parameters are the same."""

from typing import Any

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Block, RematPolicy, Sequences, Stack
from kanawa.module import unstack

#: Parameters, state and outputs of all layers live under this one child.
_LAYER = "layer"


class RepeatedStack(Stack):
    """`num_layers` copies of one block with stacked `[layers, …]` parameters.

    `scan` compiles one layer and loops; without it, the layers are written out, which compiles longer and lets the
    compiler fuse across them. `remat` says what the backward pass recomputes. Decoding always writes layers out.
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
        self.add_child(_LAYER, cfg.layer, stacked=cfg.num_layers, input_dim=cfg.input_dim)
        self.add_child("remat", cfg.remat)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T E"], Any]:
        """Returns the last residual stream, and the caches as a tuple with one entry a layer (None in training)."""
        if caches is not None:
            return self._cached(x, sequences, caches)

        def body(carry: Float[Array, "B T E"], _: None) -> tuple[Float[Array, "B T E"], None]:
            y, _cache = self.layer(self.tag("layer_input", carry), sequences)
            return y, None

        remat = False if self.remat is None else self.remat.policy()
        x, _ = kn.scan(body, x, over=_LAYER, unrolled=not self.config.scan, remat=remat)
        return x, None

    def _cached(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: tuple[Any, ...]
    ) -> tuple[Float[Array, "B T E"], tuple[Any, ...]]:
        extended: list[Any] = []

        def body(carry: Float[Array, "B T E"], _: None) -> tuple[Float[Array, "B T E"], None]:
            # The body runs once a layer while tracing, in order, so the list counts the layers.
            y, cache = self.layer(carry, sequences, caches[len(extended)])
            extended.append(cache)
            return y, None

        # A scan would need stacked caches, and would copy each layer's slice out and in for every token.
        x, _ = kn.scan(body, x, over=_LAYER, unrolled=True)
        return x, tuple(extended)

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> tuple[Any, ...]:
        """Returns one layer's layout, `num_layers` times."""
        layers: int = self.config.num_layers
        return (self.layer.cache_spec(rows, length, dtype),) * layers

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns the parameters with `layer` as a tuple of per-layer trees."""
        return {**params, _LAYER: unstack(params[_LAYER], self.config.num_layers)}
