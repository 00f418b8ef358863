"""A stack that also returns its stream after some of its layers."""

from typing import Any

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Block, RematPolicy, Sequences, Stack
from kanawa.module import unstack

_LAYER = "layer"


class TappedStack(Stack):
    """Equal blocks; the result has the last stream and behind it, along channels, those after layers `taps`.

    Layers count from 0, and taps rise. Without caches: it is for encoders.
    """

    layer: Block
    remat: RematPolicy | None

    class Config(Stack.Config):
        PLACEMENT = ("scan", "remat")

        layer: Block.Config = kn.REQUIRED
        taps: tuple[kn.Count, ...] = ()
        scan: bool = True
        remat: RematPolicy.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(children={"layer": "layers.{}"})

        def check(self) -> list[str]:
            """Returns which taps aren't layers in rising order."""
            inside = all(tap < self.num_layers for tap in self.taps)
            if inside and list(self.taps) == sorted(set(self.taps)):
                return []
            return [f"taps are {self.taps}, expected rising numbers from 0 to {self.num_layers - 1}"]

    def setup(self) -> None:
        """Declares the stacked layer."""
        cfg = self.config
        self.add_child(_LAYER, cfg.layer, stacked=cfg.num_layers, input_dim=cfg.input_dim)
        self.add_child("remat", cfg.remat)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T taps_and_1_E"], Any]:
        """Returns the streams, [B, T, (1 + taps) * E]; there are no caches."""
        cfg = self.config

        def body(carry: Float[Array, "B T E"], _: None) -> tuple[Float[Array, "B T E"], None]:
            y, _cache = self.layer(self.tag("layer_input", carry), sequences)
            return y, None

        remat = False if self.remat is None else self.remat.policy()
        tapped, start = [], 0
        for end in (*(tap + 1 for tap in cfg.taps), cfg.num_layers):
            if end > start:
                options: dict[str, Any] = {"start": start, "length": end - start, "unrolled": not cfg.scan}
                x, _ = kn.scan(body, x, over=_LAYER, remat=remat, **options)
            tapped.append(x)
            start = end
        return jnp.concatenate([tapped[-1], *tapped[:-1]], axis=-1), caches

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> tuple[Any, ...]:
        """Returns nothing: what sees all tokens at once has no cache."""
        del rows, length, dtype
        return ()

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns the parameters with `layer` as a tuple of per-layer trees."""
        return {**params, _LAYER: unstack(params[_LAYER], self.config.num_layers)}
