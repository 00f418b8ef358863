"""One side of an encoder-decoder: a stack, its last norm, and a relative bias that all of its layers share."""

from typing import Any

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Norm, Positions, Sequences, Stack

from kanawa_layers.basic.dropout import Dropout
from kanawa_layers.basic.norms import RMSNorm


class Tower(kn.Module):
    """norm(stack(x)). `relative_bias` is shared under that name, for SharedRelativeBias in the layers' attention."""

    relative_bias: Positions | None
    dropout: Dropout | None
    stack: Stack
    norm: Norm

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        num_heads: kn.Size | None = None
        relative_bias: Positions.Config | None = None
        dropout: Dropout.Config | None = None
        stack: Stack.Config = kn.REQUIRED
        norm: Norm.Config = RMSNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={"stack": "", "norm": "norm", "relative_bias": "relative_bias"}
        )

        def check(self) -> list[str]:
            """Returns what is missing for the shared bias."""
            if self.relative_bias is None:
                return []
            # Not overridden: such positions, rotary ones for example, rotate queries and keys instead.
            if getattr(self.relative_bias._target, "bias", None) is Positions.bias:
                kind = type(self.relative_bias).__qualname__
                return [
                    f"relative_bias is {kind}, which adds nothing to logits that layers could share; set it to None"
                ]
            return [] if self.num_heads else ["a shared relative_bias needs num_heads, that of the attention layers"]

    def setup(self) -> None:
        """Declares the parts and shares the bias."""
        cfg = self.config
        self.add_child("relative_bias", cfg.relative_bias, num_heads=cfg.num_heads)
        self.add_child("dropout", cfg.dropout)
        self.add_child("stack", cfg.stack, input_dim=cfg.input_dim)
        self.add_child("norm", cfg.norm, input_dim=cfg.input_dim)
        if self.relative_bias is not None:
            self.share("relative_bias", self.relative_bias)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T E"], Any]:
        """Returns the normalised stream and the extended caches."""
        x = x if self.dropout is None else self.dropout(x)
        x, caches = self.stack(x, sequences, caches)
        return self.norm(x), caches

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> Any:
        """Returns the stack's cache layout."""
        return self.stack.cache_spec(rows, length, dtype)

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns parameters with one tree a layer."""
        return {**params, "stack": self.stack.unstacked(params["stack"])}
