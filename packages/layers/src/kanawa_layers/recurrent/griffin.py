"""Griffin's recurrent block (De et al. 2024, arXiv:2402.19427, figure 2), the mixer of RecurrentGemma."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Bool, Float
from kanawa.contracts import CacheState, SequenceMixer, Sequences

from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.recurrent.carried import entering, leaving, marks
from kanawa_layers.recurrent.causal_conv import CausalConv
from kanawa_layers.recurrent.rg_lru import RGLRU


class GriffinRecurrence(SequenceMixer):
    """output(activation(gate(x)) * lru(conv(value(x)))), `width` channels wide (None: the model's width).

    `num_heads` is the number of diagonal blocks of the unit's gates. Tags for remat: value, attention_output,
    attention_projection.
    """

    output_gate: Linear
    value: Linear
    conv: CausalConv
    lru: RGLRU
    output: Linear

    class Config(SequenceMixer.Config):
        num_heads: kn.Size = kn.REQUIRED
        width: kn.Size | None = None
        activation: Callable[..., Array] = jax.nn.gelu
        output_gate: Linear.Config = Linear.Config(bias=True)
        value: Linear.Config = Linear.Config(bias=True)
        conv: CausalConv.Config = CausalConv.Config(init_scale=0.01)
        lru: RGLRU.Config = RGLRU.Config()
        output: Linear.Config = Linear.Config(bias=True)
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "output_gate": "linear_y",
                "value": "linear_x",
                "conv": "conv_1d",
                "lru": "rg_lru",
                "output": "linear_out",
            }
        )

    def setup(self) -> None:
        """Declares the two branches and the projection that joins them."""
        cfg = self.config
        self.width = cfg.width or cfg.input_dim
        for name in ("output_gate", "value"):
            add_linear(self, name, cfg.input_dim, self.width, ("embed", "mlp"))
        self.add_child("conv", cfg.conv, channels=self.width, axis="mlp")
        self.add_child("lru", cfg.lru, input_dim=self.width, num_blocks=cfg.num_heads)
        add_linear(self, "output", self.width, cfg.input_dim, ("mlp", "embed"))

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the mixed activations, and the cache with each row's state and convolution tail."""
        old, segments = entering(cache, sequences, self.path), marks(sequences)
        gate = self.config.activation(self.output_gate(x))
        value = kn.constrain(self.value(x), ("batch", "length", "mlp"))
        value, tail = self.conv(value, segments, old.get("tail"))
        starts = jnp.broadcast_to(_starts(sequences, x.shape[1]), x.shape[:2])
        h, state = self.lru(self.tag("value", value), starts, sequences.segment_ids, old.get("state"))
        out = self.tag("attention_output", gate * h)
        y = self.tag("attention_projection", self.output(out))
        carried = {"tail": tail, "state": state}
        return kn.constrain(y, ("batch", "length", "embed")), leaving(cache, carried, sequences)

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of the tail in `dtype` and the fp32 state; `length` doesn't matter."""
        state = kn.ParamSpec((rows, self.width), ("batch", "mlp"), "float32", kn.zeros)
        return {"tail": self.conv.tail_spec(rows, dtype), "state": state}


def _starts(sequences: Sequences, length: int) -> Bool[Array, "B T"]:
    """Returns which tokens begin a sequence: position 0, or without positions the first of a segment."""
    segments = marks(sequences)
    if segments is None or sequences.positions is not None:
        return sequences.token_positions(length) == 0
    resets, real = segments
    # A row's first token begins a sequence only in an empty row; any later reset always does.
    first = real & (jnp.cumsum(real, axis=1) == 1)
    lengths = jnp.zeros((), jnp.int32) if sequences.lengths is None else sequences.lengths
    empty = lengths == 0
    first = first & (empty if empty.ndim == 0 else empty[:, None])
    return first | (jnp.diff(resets, axis=1, prepend=0) > 0)
