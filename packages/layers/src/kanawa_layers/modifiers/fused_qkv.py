"""`fused-qkv`: one weight for queries, keys and values."""

from typing import Any

import kanawa as kn
from kanawa.contracts import SequenceMixer

from kanawa_layers.modifiers.fields import edit_with


class FusedQKV(kn.Modifier):
    """`fused-qkv`: one projection for queries, keys and values; its weight is laid out by key heads.

    It has the bias, form and adapter of the query's projection; `bias` overrides the first.
    """

    class Config(kn.Modifier.Config):
        bias: bool | None = None
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with fused projections; raises ConfigError where no attention supports it."""
        bias = self.config.bias

        def fuse(node: Any) -> None:
            fused = node.query.clone()
            node.set(qkv=fused if bias is None else fused.set(bias=bias))

        return edit_with(cfg, SequenceMixer, self.config.where, ("qkv",), fuse)
