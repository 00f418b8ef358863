"""The Mamba-2 mixer: state-space duality (Dao and Gu 2024, arXiv:2405.21060), as in the published checkpoints.

Names in the paper: gate is z, value is x, key is B, query is C, step is dt, log_rate is A_log, skip is D.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.arrays.broadcast import along_last
from kanawa.contracts import CacheState, SequenceMixer, Sequences
from kanawa.kernels.linear_recurrence import linear_recurrence

from kanawa_layers.attention.projections import head_width
from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.recurrent.causal_conv import CausalConv, entering, leaving, marks
from kanawa_layers.recurrent.decay_init import LogOfUniform, StepBias

#: The parts that pass through a short convolution, in the order of the published fused kernels.
#: From 0 to infinity.
_Step = Annotated[float, kn.Range(0)]
_CONVOLVED = ("value", "key", "query")


class GatedNorm(kn.Module):
    """rms_norm(x * silu(gate)) * scale; fp32 inside. Each of `groups` equal parts has its own statistics."""

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        eps: kn.Epsilon = 1e-5
        groups: kn.Size = kn.FROM_PARENT
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"scale": "weight"})

    def setup(self) -> None:
        """Declares `scale`, ones, never decayed."""
        self.add_param("scale", (self.config.input_dim,), axes=("norm",), init=kn.ones, weight_decay=0.0)

    def forward(self, x: Float[Array, "B T C"], gate: Float[Array, "B T C"]) -> Float[Array, "B T C"]:
        """Returns the normalised array in the gate's dtype."""
        # The gate comes first: the released Mamba-2 models have norm_before_gate=False.
        gated = x.astype(jnp.float32) * jax.nn.silu(gate.astype(jnp.float32))
        parts = gated.reshape(*gated.shape[:-1], self.config.groups, -1)
        parts = parts * jax.lax.rsqrt(jnp.mean(parts * parts, axis=-1, keepdims=True) + self.config.eps)
        return (parts.reshape(gated.shape) * along_last(self.param("scale", jnp.float32), x.ndim)).astype(gate.dtype)


class Mamba2(SequenceMixer):
    """S_t = exp(-exp(log_rate) dt_t) S_(t-1) + dt_t key_t value_t^T; out = norm((S_t^T query_t + skip value_t) gate).

    `num_heads` heads share `expand * input_dim` channels; `num_groups` groups of them share key and query, of width
    `state_dim`. Steps, decays and states are fp32. Projections are separate, so that heads split evenly over a mesh;
    published checkpoints fuse them. `step_limit` clips steps (None: as they are). Tags for remat: value, key, query,
    attention_output, attention_projection.
    """

    output_gate: Linear
    value: Linear
    key: Linear
    query: Linear
    step: Linear
    value_conv: CausalConv
    key_conv: CausalConv
    query_conv: CausalConv
    norm: GatedNorm
    output: Linear

    class Config(SequenceMixer.Config):
        PLACEMENT = ("chunk_length",)

        num_heads: kn.Size = kn.REQUIRED
        expand: kn.Size = 2
        state_dim: kn.Size = 128
        num_groups: kn.Size = 1
        step_limit: tuple[_Step, _Step] | None = None
        chunk_length: kn.Size | None = None
        output_gate: Linear.Config = Linear.Config()
        value: Linear.Config = Linear.Config()
        key: Linear.Config = Linear.Config()
        query: Linear.Config = Linear.Config()
        step: Linear.Config = Linear.Config()
        value_conv: CausalConv.Config = CausalConv.Config()
        key_conv: CausalConv.Config = CausalConv.Config()
        query_conv: CausalConv.Config = CausalConv.Config()
        norm: GatedNorm.Config = GatedNorm.Config()
        output: Linear.Config = Linear.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"log_rate": "A_log", "skip": "D", "step_bias": "dt_bias"},
            children={"norm": "norm", "output": "out_proj"},
            # in_proj stacks z, x, B, C and dt in this order; the convolution covers x, B and C as one.
            joined=(
                kn.foreign.Joined(name="in_proj", parts=("output_gate", "value", "key", "query", "step")),
                kn.foreign.Joined(name="conv1d", parts=("value_conv", "key_conv", "query_conv")),
            ),
        )

        def check(self) -> list[str]:
            """Returns what is wrong with the head counts."""
            if self.num_heads % self.num_groups == 0:
                return []
            return [f"num_heads ({self.num_heads}) is not a multiple of num_groups ({self.num_groups})"]

    def setup(self) -> None:
        """Declares projections, convolutions and the recurrence's own parameters, which never decay."""
        cfg = self.config
        inner, shared = cfg.expand * cfg.input_dim, cfg.num_groups * cfg.state_dim
        self.head_dim = head_width(inner, cfg.num_heads, self.path)
        parts = {"output_gate": (inner, "mlp"), "value": (inner, "mlp"), "key": (shared, "state")}
        parts |= {"query": (shared, "state"), "step": (cfg.num_heads, "heads")}
        for name, (width, axis) in parts.items():
            add_linear(self, name, cfg.input_dim, width, ("embed", axis))
        for name in _CONVOLVED:
            width, axis = parts[name]
            self.add_child(f"{name}_conv", getattr(cfg, f"{name}_conv"), channels=width, axis=axis)
        # Weight decay would pull rates to exp(0) and step biases to softplus(0): it would change the memory's time
        # scales.
        for name, init in (("log_rate", LogOfUniform()), ("skip", kn.ones), ("step_bias", StepBias())):
            self.add_param(name, (cfg.num_heads,), axes=("heads",), init=init, weight_decay=0.0)
        self.add_child("norm", cfg.norm, input_dim=inner, groups=cfg.num_groups)
        add_linear(self, "output", inner, cfg.input_dim, ("mlp", "embed"))

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the mixed activations, and the cache with each row's state and convolution tails."""
        cfg, old, segments = self.config, entering(cache, sequences, self.path), marks(sequences)
        mixed: dict[str, jax.Array] = {}
        carried: CacheState = {}
        for name in _CONVOLVED:
            convolve: CausalConv = getattr(self, f"{name}_conv")
            convolved, carried[f"{name}_tail"] = convolve(getattr(self, name)(x), segments, old.get(f"{name}_tail"))
            mixed[name] = self.tag(name, jax.nn.silu(convolved))
        value = mixed["value"].reshape(*x.shape[:2], cfg.num_heads, self.head_dim)
        value = kn.constrain(value, ("batch", "length", "heads", "head_dim"))
        key, query = (mixed[n].reshape(*x.shape[:2], cfg.num_groups, cfg.state_dim) for n in ("key", "query"))
        # Steps and rates stay fp32: they are summed over the chunk before they are exponentiated.
        step = self._step(x)
        rate = -jnp.exp(self.param("log_rate", jnp.float32))
        out, carried["state"] = linear_recurrence(
            query,
            key,
            # Multiplied in fp32: steps start as small as 0.001, of which bfloat16 has two to three digits.
            (value.astype(jnp.float32) * step[..., None]).astype(value.dtype),
            log_decay=step * rate[None, None],
            initial_state=old.get("state"),
            segment_ids=sequences.segment_ids,
            chunk_length=cfg.chunk_length,
        )
        # The skip takes values as they are, without the step: D x, not D dt x.
        out = out + self.param("skip")[None, None, :, None] * value
        out = self.tag("attention_output", out.reshape(*x.shape[:2], -1))
        y = self.tag("attention_projection", self.output(self.norm(out, self.output_gate(x))))
        return kn.constrain(y, ("batch", "length", "embed")), leaving(cache, carried, sequences)

    def _step(self, x: Float[Array, "B T E"]) -> Float[Array, "B T H"]:
        """Returns each head's step, fp32."""
        raw = self.step(x).astype(jnp.float32) + self.param("step_bias", jnp.float32)[None, None]
        step = jax.nn.softplus(raw)
        return step if self.config.step_limit is None else jnp.clip(step, *self.config.step_limit)

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of three tails in `dtype` and an fp32 state; `length` doesn't matter."""
        cfg = self.config
        shape = (rows, cfg.num_heads, cfg.state_dim, self.head_dim)
        # Always fp32: every token adds to the state, and rounding errors would accumulate.
        state = kn.ParamSpec(shape, ("batch", "heads", "state", "head_dim"), "float32", kn.zeros)
        tails = {f"{name}_tail": getattr(self, f"{name}_conv").tail_spec(rows, dtype) for name in _CONVOLVED}
        return {**tails, "state": state}

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns projections and convolutions, and 4 FLOPs an element of the state for writing and reading it."""
        state = self.config.num_heads * self.config.state_dim * self.head_dim
        return float(super().flops_per_token(context_length) + 4.0 * state)
