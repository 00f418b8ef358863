"""What mixers with a delta rule share: short convolutions, unit queries and keys, a state a head, a gated output."""

import abc

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import CacheState, Norm, SequenceMixer, Sequences
from kanawa.kernels.segments import Segments

from kanawa_layers.attention.projections import head_dim_of
from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.recurrent.causal_conv import CausalConv, entering, leaving, marks
from kanawa_layers.recurrent.decay_init import LogOfUniform, StepBias

#: The parts that pass through a short convolution.
_CONVOLVED = ("query", "key", "value")
#: Names of these parts in flash-linear-attention's checkpoints.
NAMES = {
    **{name: f"{name[0]}_proj" for name in _CONVOLVED},
    **{f"{name}_conv": f"{name[0]}_conv1d" for name in _CONVOLVED},
    **{"write": "b_proj", "norm": "o_norm", "output": "o_proj"},
}


class DeltaRule(SequenceMixer):
    """out = norm(S_t^T q_t) * gate, where S_t is S_(t-1) decayed and corrected at k_t towards v_t by beta_t.

    beta = sigmoid(write(x)). Queries, keys and values pass through a convolution and SiLU; queries and keys have length
    1, queries are scaled by head_dim ** -0.5. Decays and states are fp32. Tags for remat: query, key, value,
    attention_output, attention_projection. A subclass says how states decay and what the gate is.
    """

    query: Linear
    key: Linear
    value: Linear
    write: Linear
    query_conv: CausalConv
    key_conv: CausalConv
    value_conv: CausalConv
    norm: Norm
    output: Linear

    class Config(SequenceMixer.Config):
        PLACEMENT = ("chunk_length",)

        num_heads: kn.Size = kn.REQUIRED
        head_dim: kn.Size | None = None
        value_dim: kn.Size | None = None
        chunk_length: kn.Size | None = None
        query: Linear.Config = Linear.Config()
        key: Linear.Config = Linear.Config()
        value: Linear.Config = Linear.Config()
        write: Linear.Config = Linear.Config()
        query_conv: CausalConv.Config = CausalConv.Config(bias=False)
        key_conv: CausalConv.Config = CausalConv.Config(bias=False)
        value_conv: CausalConv.Config = CausalConv.Config(bias=False)
        norm: Norm.Config = RMSNorm.Config()
        output: Linear.Config = Linear.Config()

    def declare(self, key_heads: int, decays: int, decay_axis: str) -> None:
        """Declares what both rules have, with `decays` steps of decay; parameters of decays never decay themselves."""
        cfg = self.config
        self.key_dim = head_dim_of(self)
        self.value_dim = cfg.value_dim or self.key_dim
        keys, self.values = key_heads * self.key_dim, cfg.num_heads * self.value_dim
        for name, width in zip(_CONVOLVED, (keys, keys, self.values), strict=True):
            add_linear(self, name, cfg.input_dim, width, ("embed", "mlp"))
            self.add_child(f"{name}_conv", getattr(cfg, f"{name}_conv"), channels=width, axis="mlp")
        add_linear(self, "write", cfg.input_dim, cfg.num_heads, ("embed", "heads"))
        self.add_param("log_rate", (cfg.num_heads,), axes=("heads",), init=LogOfUniform(), weight_decay=0.0)
        self.add_param("step_bias", (decays,), axes=(decay_axis,), init=StepBias(), weight_decay=0.0)
        self.add_child("norm", cfg.norm, input_dim=self.value_dim)
        add_linear(self, "output", self.values, cfg.input_dim, ("mlp", "embed"))

    @abc.abstractmethod
    def raw_step(self, x: Float[Array, "B T E"]) -> Float[Array, "B T steps"]:
        """Returns the projection that, with `step_bias`, makes the decays' steps."""

    @abc.abstractmethod
    def gate(self, x: Float[Array, "B T E"]) -> Float[Array, "B T HV"]:
        """Returns what the normed output is multiplied by."""

    @abc.abstractmethod
    def recur(
        self,
        heads: dict[str, jax.Array],
        step: Float[Array, "B T steps"],
        beta: Float[Array, "B T H"],
        state: Float[Array, "B H K V"] | None,
        segments: Segments | None,
        segment_ids: jax.Array | None,
    ) -> tuple[Float[Array, "B T H V"], Float[Array, "B H K V"]]:
        """Returns what each token reads, and the state after the last one; `heads` has query, key and value."""

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the mixed activations, and the cache with each row's state and convolution tails."""
        old, segments = entering(cache, sequences, self.path), marks(sequences)
        heads: dict[str, jax.Array] = {}
        carried: CacheState = {}
        for name, width in zip(_CONVOLVED, (self.key_dim, self.key_dim, self.value_dim), strict=True):
            convolve: CausalConv = getattr(self, f"{name}_conv")
            y, carried[f"{name}_tail"] = convolve(getattr(self, name)(x), segments, old.get(f"{name}_tail"))
            heads[name] = jax.nn.silu(y).reshape(*x.shape[:2], -1, width)
        heads["query"] = _unit(heads["query"]) * jnp.asarray(self.key_dim**-0.5, x.dtype)
        # With keys of length 1 and beta below 1, I - beta k k^T only ever shrinks the state; longer keys would make it
        # diverge.
        heads["key"] = _unit(heads["key"])
        heads = {name: self.tag(name, array) for name, array in heads.items()}
        heads["value"] = kn.constrain(heads["value"], ("batch", "length", "heads", "head_dim"))
        step = jax.nn.softplus(self.raw_step(x).astype(jnp.float32) + self.param("step_bias", jnp.float32)[None, None])
        beta = jax.nn.sigmoid(self.write(x).astype(jnp.float32))
        out, carried["state"] = self.recur(heads, step, beta, old.get("state"), segments, sequences.segment_ids)
        # Normed and then gated; Mamba-2 gates first, so that the gate enters the statistics.
        out = self.norm(self.tag("attention_output", out.astype(x.dtype))).reshape(*x.shape[:2], -1)
        y = self.tag("attention_projection", self.output(out * self.gate(x)))
        return kn.constrain(y, ("batch", "length", "embed")), leaving(cache, carried, sequences)

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of three tails in `dtype` and an fp32 state; `length` doesn't matter."""
        shape = (rows, self.config.num_heads, self.key_dim, self.value_dim)
        state = kn.ParamSpec(shape, ("batch", "heads", "state", "head_dim"), "float32", kn.zeros)
        tails = {f"{name}_tail": getattr(self, f"{name}_conv").tail_spec(rows, dtype) for name in _CONVOLVED}
        return {**tails, "state": state}

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns projections and convolutions, and 6 FLOPs an element of the state: correct, write, read."""
        state = self.config.num_heads * self.key_dim * self.value_dim
        return float(super().flops_per_token(context_length) + 6.0 * state)


def _unit(x: Float[Array, "B T H D"]) -> Float[Array, "B T H D"]:
    """Returns each head scaled to length 1, fp32 inside."""
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.sum(x32 * x32, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)
