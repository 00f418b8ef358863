"""Griffin's recurrent layer, and its RG-LRU (De et al. 2024, arXiv:2402.19427, sections 2.3 and 2.4)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Bool, Float
from kanawa.contracts import CacheState, SequenceMixer, Sequences
from kanawa.kernels.diagonal_recurrence import diagonal_recurrence

from kanawa_layers.attention.projections import head_width
from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.recurrent.causal_conv import CausalConv, entering, leaving, marks
from kanawa_layers.recurrent.decay_init import RingDecay

_GATES = ("input_gate", "recurrence_gate")


class RGLRU(kn.Module):
    """h_t = a_t h_(t-1) + sqrt(1 - a_t^2) (i_t x_t), with log a_t = -c r_t softplus(rate), each channel on its own.

    The gates i and r are sigmoids of block-diagonal projections of x, `num_blocks` blocks. At a segment's first token
    the input counts whole, without the square root, as in the published model. Gates and states are fp32.
    """

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        num_blocks: kn.Size = kn.FROM_PARENT
        c: kn.Positive = 8.0
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={
                "rate": "recurrent_param",
                "input_gate": "input_gate_weight",
                "input_gate_bias": "input_gate_bias",
                "recurrence_gate": "recurrent_gate_weight",
                "recurrence_gate_bias": "recurrent_gate_bias",
            }
        )

    def setup(self) -> None:
        """Declares both gates, [blocks, width, width] with biases, and `rate`, for decays of 0.9 to 0.999."""
        cfg = self.config
        width = head_width(cfg.input_dim, cfg.num_blocks, self.path)
        for name in _GATES:
            shape, axes = (cfg.num_blocks, width, width), ("heads", None, None)
            self.add_param(name, shape, axes=axes, fan_in_axes=(1,), fan_out_axes=(2,))
            self.add_param(f"{name}_bias", shape[:2], axes=axes[:2], init=kn.zeros, weight_decay=0.0)
        self.add_param("rate", (cfg.input_dim,), axes=("mlp",), init=RingDecay(), weight_decay=0.0)

    def forward(
        self,
        x: Float[Array, "B T C"],
        starts: Bool[Array, "B T"],
        segment_ids: jax.Array | None,
        state: Float[Array, "B C"] | None,
    ) -> tuple[Float[Array, "B T C"], Float[Array, "B C"]]:
        """Returns h in x's dtype and the final state, fp32; `starts` marks the first token of each sequence."""
        x32 = x.astype(jnp.float32)
        log_decay = -self.config.c * self._gate(x, "recurrence_gate")
        log_decay = log_decay * jax.nn.softplus(self.param("rate", jnp.float32))[None, None]
        # -expm1(2 log a) is 1 - a^2 without cancellation; at a start it isn't used, nor may its gradient be.
        squared = jnp.where(starts[..., None], 1.0, -jnp.expm1(2.0 * log_decay))
        # The floor bounds the root's gradient where a decay rounds to 1.
        gated = x32 * self._gate(x, "input_gate") * jnp.sqrt(jnp.maximum(squared, 1e-12))
        decay = jnp.where(starts[..., None], 0.0, jnp.exp(log_decay))
        h, final = diagonal_recurrence(decay, gated, initial_state=state, segment_ids=segment_ids)
        return h.astype(x.dtype), final

    def _gate(self, x: Float[Array, "B T C"], name: str) -> Float[Array, "B T C"]:
        blocks = x.reshape(*x.shape[:2], self.config.num_blocks, -1)
        logits = jnp.einsum("bthi,hio->btho", blocks, self.param(name), preferred_element_type=jnp.float32)
        return jax.nn.sigmoid(logits + self.param(f"{name}_bias", jnp.float32)[None, None]).reshape(x.shape)

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs a weight of the gates, and two a channel for the recurrence."""
        del context_length
        cfg = self.config
        # Gates are block-diagonal, so each of the two costs input_dim^2 / num_blocks weights.
        return float(4.0 * cfg.input_dim**2 / cfg.num_blocks + 2.0 * cfg.input_dim)


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
