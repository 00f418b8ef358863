"""Attention whose values are normalised, and may be the keys themselves (Gemma 4)."""

from typing import Any

from jaxtyping import Array, Float, Int
from kanawa.contracts import Norm, Sequences

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.projections import normed
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import UnitRMSNorm


class NormedValueAttention(GroupedQueryAttention):
    """Grouped-query attention over normalised values; without `value`, they are the projected keys, not rotated."""

    value_norm: Norm | None

    class Config(GroupedQueryAttention.Config):
        value: Linear.Config | None = Linear.Config()  # type: ignore[assignment]
        value_norm: Norm.Config = UnitRMSNorm.Config()

        def check(self) -> list[str]:
            """Returns what is wrong with the heads, the window, and a fused projection."""
            fused = ["qkv fuses a value that this layer normalises by itself; leave qkv unset"] if self.qkv else []
            return super().check() + fused

    def setup(self) -> None:
        """Declares the attention, and the norm of values where this layer has its own."""
        super().setup()
        self.add_child("value_norm", None if self.takes_keys else self.config.value_norm, input_dim=self.head_dim)

    def _queries_keys_values(
        self, x: Float[Array, "B T E"], sequences: Sequences, positions: Int[Array, "B T"]
    ) -> tuple[Any, Any, Any]:
        """Returns the inputs of the dot product: queries and keys normalised and rotated, values normalised."""
        assert self.key is not None
        assert self.value_norm is not None
        k = self.key(x)
        v = self.tag("value", self.value_norm(k if self.value is None else self.value(x)))
        k = k if self.key_norm is None else normed(self.key_norm, k, self.config.norm_all_heads)
        coordinates = positions if sequences.coordinates is None else sequences.coordinates
        k, _ = self.positions.rotate(k, k[:, :, :0], coordinates)
        return self._queries(x, sequences, positions), self.tag("key", k), v
