"""A stack whose stream is taken before its last layers: features of a tower that was trained with all of them."""

from typing import Any

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Block, Norm, RematPolicy, Sequences, Stack
from kanawa.module import unstack

_LAYER = "layer"


class EarlierLayerStack(Stack):
    """Equal blocks, of which the last `skipped` don't run, nor does `norm`, which comes after them.

    They have parameters, so that a tower's checkpoint is read and written whole; their gradient is zero.
    """

    layer: Block
    norm: Norm | None
    remat: RematPolicy | None

    class Config(Stack.Config):
        PLACEMENT = ("scan", "remat")

        layer: Block.Config = kn.REQUIRED
        skipped: kn.Size = 1
        norm: Norm.Config | None = None
        scan: bool = True
        remat: RematPolicy.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(children={"layer": "layers.{}", "norm": "norm"})

        def check(self) -> list[str]:
            """Returns what leaves no layer to run."""
            if self.skipped < self.num_layers:
                return []
            return [f"skipped is {self.skipped}, expected less than num_layers ({self.num_layers})"]

    def setup(self) -> None:
        """Declares the stacked layer, and the norm."""
        cfg = self.config
        self.add_child(_LAYER, cfg.layer, stacked=cfg.num_layers, input_dim=cfg.input_dim)
        self.add_child("norm", cfg.norm, input_dim=cfg.input_dim)
        self.add_child("remat", cfg.remat)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T E"], Any]:
        """Returns the residual stream after the layers that run; there are no caches."""
        cfg = self.config

        def body(carry: Float[Array, "B T E"], _: None) -> tuple[Float[Array, "B T E"], None]:
            y, _cache = self.layer(self.tag("layer_input", carry), sequences)
            return y, None

        remat = False if self.remat is None else self.remat.policy()
        used = cfg.num_layers - cfg.skipped
        x, _ = kn.scan(body, x, over=_LAYER, length=used, unrolled=not cfg.scan, remat=remat)
        return x, caches

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> tuple[Any, ...]:
        """Returns nothing: what sees all tokens at once has no cache."""
        del rows, length, dtype
        return ()

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns the parameters with `layer` as a tuple of per-layer trees."""
        return {**params, _LAYER: unstack(params[_LAYER], self.config.num_layers)}

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns those of the layers that run."""
        used = self.config.num_layers - self.config.skipped
        return float(self.layer.flops_per_token(context_length) * used)
