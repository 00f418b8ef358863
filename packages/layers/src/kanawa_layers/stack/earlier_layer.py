"""A stack whose stream is taken before its last layers: features of a tower that was trained with all of them."""

from typing import Any

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Norm, Sequences

from kanawa_layers.stack.without_cache import CachelessStack


class EarlierLayerStack(CachelessStack):
    """Equal blocks, of which the last `skipped` don't run, nor does `norm`, which comes after them.

    They have parameters, so that a tower's checkpoint is read and written whole; their gradient is zero.
    """

    norm: Norm | None

    class Config(CachelessStack.Config):
        skipped: kn.Size = 1
        norm: Norm.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(children={"layer": "layers.{}", "norm": "norm"})

        def check(self) -> list[str]:
            """Returns what leaves no layer to run."""
            if self.skipped < self.num_layers:
                return []
            return [f"skipped is {self.skipped}, expected less than num_layers ({self.num_layers})"]

    def setup(self) -> None:
        """Declares the stacked layer, and the norm."""
        super().setup()
        self.add_child("norm", self.config.norm, input_dim=self.config.input_dim)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T E"], Any]:
        """Returns the residual stream after the layers that run; there are no caches."""
        return self.run(x, sequences, 0, self.config.num_layers - self.config.skipped), caches

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns those of the layers that run."""
        used = self.config.num_layers - self.config.skipped
        return float(self.layer.flops_per_token(context_length) * used)
