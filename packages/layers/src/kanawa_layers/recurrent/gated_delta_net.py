"""Gated delta network (Yang et al. 2024, arXiv:2412.06464), as in Qwen3-Next's linear layers."""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import CacheState, Norm, SequenceMixer, Sequences
from kanawa.kernels.linear_recurrence import linear_recurrence

from kanawa_layers.attention.projections import head_dim_of
from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.recurrent.causal_conv import CausalConv, entering, leaving, marks
from kanawa_layers.recurrent.decay_init import LogOfUniform, StepBias

#: The parts that pass through a short convolution.
_CONVOLVED = ("query", "key", "value")


class GatedDeltaNet(SequenceMixer):
    """S_t = a_t (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T; out = norm(S_t^T q_t) silu(gate).

    beta = sigmoid(write(x)); a = exp(-exp(log_rate) softplus(decay(x) + step_bias)); queries and keys have length 1,
    queries are scaled by head_dim ** -0.5. Head h of `num_heads` uses key head h // (num_heads / num_key_heads).
    Decays and states are fp32. Tags for remat: query, key, value, attention_output, attention_projection.
    """

    query: Linear
    key: Linear
    value: Linear
    write: Linear
    decay: Linear
    output_gate: Linear
    query_conv: CausalConv
    key_conv: CausalConv
    value_conv: CausalConv
    norm: Norm
    output: Linear

    class Config(SequenceMixer.Config):
        PLACEMENT = ("chunk_length",)

        num_heads: kn.Size = kn.REQUIRED
        num_key_heads: kn.Size | None = None
        head_dim: kn.Size | None = None
        value_dim: kn.Size | None = None
        chunk_length: kn.Size | None = None
        query: Linear.Config = Linear.Config()
        key: Linear.Config = Linear.Config()
        value: Linear.Config = Linear.Config()
        write: Linear.Config = Linear.Config()
        decay: Linear.Config = Linear.Config()
        output_gate: Linear.Config = Linear.Config()
        query_conv: CausalConv.Config = CausalConv.Config(bias=False)
        key_conv: CausalConv.Config = CausalConv.Config(bias=False)
        value_conv: CausalConv.Config = CausalConv.Config(bias=False)
        norm: Norm.Config = RMSNorm.Config()
        output: Linear.Config = Linear.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"log_rate": "A_log", "step_bias": "dt_bias"},
            children={
                "query": "q_proj",
                "key": "k_proj",
                "value": "v_proj",
                "write": "b_proj",
                "decay": "a_proj",
                "output_gate": "g_proj",
                "query_conv": "q_conv1d",
                "key_conv": "k_conv1d",
                "value_conv": "v_conv1d",
                "norm": "o_norm",
                "output": "o_proj",
            },
        )

        def check(self) -> list[str]:
            """Returns what is wrong with the head counts."""
            keys = self.num_key_heads or self.num_heads
            if self.num_heads % keys == 0:
                return []
            return [f"num_heads ({self.num_heads}) is not a multiple of num_key_heads ({keys})"]

    def setup(self) -> None:
        """Declares projections, convolutions, the decay's parameters (never decayed), and the norm of each head."""
        cfg = self.config
        self.key_heads = cfg.num_key_heads or cfg.num_heads
        self.key_dim = head_dim_of(self)
        self.value_dim = cfg.value_dim or self.key_dim
        keys, values = self.key_heads * self.key_dim, cfg.num_heads * self.value_dim
        widths = {"query": keys, "key": keys, "value": values, "output_gate": values}
        for name, width in {**widths, "write": cfg.num_heads, "decay": cfg.num_heads}.items():
            axis = "mlp" if name in widths else "heads"
            add_linear(self, name, cfg.input_dim, width, ("embed", axis))
        for name in _CONVOLVED:
            self.add_child(f"{name}_conv", getattr(cfg, f"{name}_conv"), channels=widths[name], axis="mlp")
        for name, init in (("log_rate", LogOfUniform()), ("step_bias", StepBias())):
            self.add_param(name, (cfg.num_heads,), axes=("heads",), init=init, weight_decay=0.0)
        self.add_child("norm", cfg.norm, input_dim=self.value_dim)
        add_linear(self, "output", values, cfg.input_dim, ("mlp", "embed"))

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the mixed activations, and the cache with each row's state and convolution tails."""
        cfg, old, segments = self.config, entering(cache, sequences, self.path), marks(sequences)
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
        out, carried["state"] = linear_recurrence(
            heads["query"],
            heads["key"],
            kn.constrain(heads["value"], ("batch", "length", "heads", "head_dim")),
            log_decay=self._log_decay(x),
            beta=jax.nn.sigmoid(self.write(x).astype(jnp.float32)),
            initial_state=old.get("state"),
            segment_ids=sequences.segment_ids,
            chunk_length=cfg.chunk_length,
        )
        # Normed and then gated; Mamba-2 gates first, so that the gate enters the statistics.
        out = self.norm(self.tag("attention_output", out)).reshape(*x.shape[:2], -1)
        y = self.tag("attention_projection", self.output(out * jax.nn.silu(self.output_gate(x))))
        return kn.constrain(y, ("batch", "length", "embed")), leaving(cache, carried, sequences)

    def _log_decay(self, x: Float[Array, "B T E"]) -> Float[Array, "B T H"]:
        """Returns the log of each head's decay, fp32."""
        step = jax.nn.softplus(self.decay(x).astype(jnp.float32) + self.param("step_bias", jnp.float32)[None, None])
        return -jnp.exp(self.param("log_rate", jnp.float32))[None, None] * step

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
