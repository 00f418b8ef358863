"""A stack of equal blocks, scanned or written out; parameters are the same."""

from typing import Any

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Sequences

from kanawa_layers.stack.equal_blocks import LAYER, EqualBlocks


class RepeatedStack(EqualBlocks):
    """Equal blocks one after another, each with a cache of its own. Decoding always writes layers out."""

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T E"], Any]:
        """Returns the last residual stream, and the caches as a tuple with one entry a layer (None in training)."""
        if caches is None:
            return self.run(x, sequences), None
        extended: list[Any] = []

        def body(carry: Float[Array, "B T E"], _: None) -> tuple[Float[Array, "B T E"], None]:
            # The body runs once a layer while tracing, in order, so the list counts the layers.
            y, cache = self.layer(carry, sequences, caches[len(extended)])
            extended.append(cache)
            return y, None

        # A scan would need stacked caches, and would copy each layer's slice out and in for every token.
        x, _ = kn.scan(body, x, over=LAYER, unrolled=True)
        return x, tuple(extended)

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> tuple[Any, ...]:
        """Returns one layer's layout, `num_layers` times."""
        layers: int = self.config.num_layers
        return (self.layer.cache_spec(rows, length, dtype),) * layers
