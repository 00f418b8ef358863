"""Long short-term memory (Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000), with segment resets."""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import CacheState, SequenceMixer, Sequences
from kanawa.kernels.matmul import matmul

from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.recurrent.causal_conv import entering, leaving, marks


class LSTM(SequenceMixer):
    """i, f, g, o = input(x_t) + h_(t-1) W; c = sigmoid(f) c + sigmoid(i) tanh(g); h = sigmoid(o) tanh(c); output(h).

    Computed token by token, because h is an input of the gates. Gates and states are fp32. The forget gate's bias
    starts at `forget_bias` (Jozefowicz et al. 2015). Tags for remat: attention_output, attention_projection.
    """

    input: Linear
    output: Linear

    class Config(SequenceMixer.Config):
        hidden_dim: kn.Size | None = None
        forget_bias: kn.Finite = 1.0
        input: Linear.Config = Linear.Config(bias=True)
        output: Linear.Config = Linear.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"recurrent": kn.foreign.Tensor(name="weight_hh_l0", form=kn.foreign.Matrix.Config())},
            children={"input": "input", "output": "output"},
        )

    def setup(self) -> None:
        """Declares projections from x to the four gates, from h to them (`recurrent`), and from h to the output."""
        cfg = self.config
        self.hidden_dim = cfg.hidden_dim or cfg.input_dim
        self.add_child(
            "input",
            cfg.input,
            input_shape=(cfg.input_dim,),
            output_shape=(4, self.hidden_dim),
            axes=("embed", None, "mlp"),
        )
        shape, axes = (self.hidden_dim, 4, self.hidden_dim), ("mlp", None, None)
        self.add_param("recurrent", shape, axes=axes, fan_in_axes=(0,), fan_out_axes=(1, 2))
        add_linear(self, "output", self.hidden_dim, cfg.input_dim, ("mlp", "embed"))

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the outputs, and the cache with each row's hidden and cell state."""
        old, segments = entering(cache, sequences, self.path), marks(sequences)
        batch, length, _ = x.shape
        zeros = jnp.zeros((batch, self.hidden_dim), jnp.float32)
        start = (old.get("hidden", zeros), old.get("cell", zeros))
        real, resets = jnp.ones((batch, length), bool), jnp.zeros((batch, length), bool)
        if segments is not None:
            real, resets = segments.real, jnp.diff(segments.resets, axis=1, prepend=0) > 0
        bias = jnp.asarray([0.0, self.config.forget_bias, 0.0, 0.0], jnp.float32)[None, None, :, None]
        gates = self.input(x).astype(jnp.float32) + bias
        recurrent = self.param("recurrent", jnp.float32)

        def one_token(states: tuple[jax.Array, ...], token: tuple[jax.Array, ...]) -> tuple[Any, jax.Array]:
            gates, real, resets = token
            hidden, cell = (jnp.where(resets[:, None], 0.0, s) for s in states)
            # PyTorch's order of gates, so that its weights need no permutation.
            i, f, g, o = jnp.moveaxis(gates + matmul(hidden, recurrent), 1, 0)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            # Padding doesn't change the states, so that the last ones are those of the last real token.
            states_after = tuple(
                jnp.where(real[:, None], new, s) for new, s in zip((hidden, cell), states, strict=True)
            )
            return states_after, states_after[0]

        by_time = tuple(jnp.moveaxis(array, 1, 0) for array in (gates, real, resets))
        (hidden, cell), out = jax.lax.scan(one_token, start, by_time)
        out = self.tag("attention_output", jnp.moveaxis(out, 0, 1).astype(x.dtype))
        y = self.tag("attention_projection", self.output(out))
        carried = {"hidden": hidden, "cell": cell}
        return kn.constrain(y, ("batch", "length", "embed")), leaving(cache, carried, sequences)

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of both states, fp32; neither `length` nor `dtype` matters."""
        state = kn.ParamSpec((rows, self.hidden_dim), ("batch", "mlp"), "float32", kn.zeros)
        return {"hidden": state, "cell": state}

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs a weight."""
        return float(super().flops_per_token(context_length) + 8.0 * self.hidden_dim**2)
