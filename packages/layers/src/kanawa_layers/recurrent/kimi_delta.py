"""Kimi delta attention: a gated delta network whose decay is one number for each key channel (Kimi Linear).

Legend: B rows, T tokens, C tokens of a chunk, H heads, K key width, V value width.
"""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import CacheState, Norm, SequenceMixer, Sequences
from kanawa.kernels.segments import Segments

from kanawa_layers.attention.projections import head_dim_of
from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.kernels.linear_recurrence import unit_lower_inverse
from kanawa_layers.recurrent.causal_conv import CausalConv, entering, leaving, marks
from kanawa_layers.recurrent.decay_init import LogOfUniform, StepBias

_CONVOLVED = ("query", "key", "value")


class KimiDeltaAttention(SequenceMixer):
    """S_t = (I - beta_t k_t k_t^T) diag(a_t) S_(t-1) + beta_t k_t v_t^T; out = norm(S_t^T q_t) sigmoid(gate).

    a = exp(-exp(log_rate) softplus(decay_up(decay_down(x)) + step_bias)), one number for each head and key channel;
    beta = sigmoid(write(x)); gate = gate_up(gate_down(x)); queries and keys have length 1, queries are scaled by
    head_dim ** -0.5 (Kimi Linear, arXiv:2510.26692, section 3). Decays and states are fp32. Chunks of `chunk_length`
    tokens are matmuls; decays within one are [B, C, C, H, K]. Tags for remat as in `GatedDeltaNet`.
    """

    query: Linear
    key: Linear
    value: Linear
    write: Linear
    decay_down: Linear
    decay_up: Linear
    gate_down: Linear
    gate_up: Linear
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
        rank: kn.Size | None = None
        chunk_length: kn.Size = 16
        query: Linear.Config = Linear.Config()
        key: Linear.Config = Linear.Config()
        value: Linear.Config = Linear.Config()
        write: Linear.Config = Linear.Config()
        decay_down: Linear.Config = Linear.Config()
        decay_up: Linear.Config = Linear.Config()
        gate_down: Linear.Config = Linear.Config()
        gate_up: Linear.Config = Linear.Config()
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
                "decay_down": "f_a_proj",
                "decay_up": "f_b_proj",
                "gate_down": "g_a_proj",
                "gate_up": "g_b_proj",
                "query_conv": "q_conv1d",
                "key_conv": "k_conv1d",
                "value_conv": "v_conv1d",
                "norm": "o_norm",
                "output": "o_proj",
            },
        )

    def setup(self) -> None:
        """Declares projections, convolutions, the decay's parameters (never decayed), and the norm of each head.

        Decay and gate pass through `rank` channels, by default head_dim.
        """
        cfg = self.config
        self.key_dim = head_dim_of(self)
        self.value_dim = cfg.value_dim or self.key_dim
        keys, values, rank = cfg.num_heads * self.key_dim, cfg.num_heads * self.value_dim, cfg.rank or self.key_dim
        widths = {"query": keys, "key": keys, "value": values}
        for name, width in widths.items():
            add_linear(self, name, cfg.input_dim, width, ("embed", "mlp"))
            self.add_child(f"{name}_conv", getattr(cfg, f"{name}_conv"), channels=width, axis="mlp")
        add_linear(self, "write", cfg.input_dim, cfg.num_heads, ("embed", "heads"))
        for name, width in (("decay", keys), ("gate", values)):
            add_linear(self, f"{name}_down", cfg.input_dim, rank, ("embed", None))
            add_linear(self, f"{name}_up", rank, width, (None, "mlp"))
        self.add_param("log_rate", (cfg.num_heads,), axes=("heads",), init=LogOfUniform(), weight_decay=0.0)
        self.add_param("step_bias", (keys,), axes=("mlp",), init=StepBias(), weight_decay=0.0)
        self.add_child("norm", cfg.norm, input_dim=self.value_dim)
        add_linear(self, "output", values, cfg.input_dim, ("mlp", "embed"))

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the mixed activations, and the cache with each row's state and convolution tails."""
        cfg, old, segments = self.config, entering(cache, sequences, self.path), marks(sequences)
        heads: dict[str, jax.Array] = {}
        carried: CacheState = {}
        for name in _CONVOLVED:
            convolve: CausalConv = getattr(self, f"{name}_conv")
            y, carried[f"{name}_tail"] = convolve(getattr(self, name)(x), segments, old.get(f"{name}_tail"))
            heads[name] = jax.nn.silu(y).reshape(*x.shape[:2], cfg.num_heads, -1)
        q, k, v = (self.tag(name, heads[name]).astype(jnp.float32) for name in _CONVOLVED)
        out, carried["state"] = channel_delta(
            _unit(q) * self.key_dim**-0.5,
            _unit(k),
            kn.constrain(v, ("batch", "length", "heads", "head_dim")),
            self._log_decay(x),
            jax.nn.sigmoid(self.write(x).astype(jnp.float32)),
            old.get("state"),
            segments,
            cfg.chunk_length,
        )
        out = self.norm(self.tag("attention_output", out.astype(x.dtype))).reshape(*x.shape[:2], -1)
        gate = jax.nn.sigmoid(self.gate_up(self.gate_down(x)))
        y = self.tag("attention_projection", self.output(out * gate))
        return kn.constrain(y, ("batch", "length", "embed")), leaving(cache, carried, sequences)

    def _log_decay(self, x: Float[Array, "B T E"]) -> Float[Array, "B T H K"]:
        """Returns the log of each channel's decay, fp32."""
        step = self.decay_up(self.decay_down(x)).astype(jnp.float32) + self.param("step_bias", jnp.float32)[None, None]
        step = jax.nn.softplus(step).reshape(*x.shape[:2], self.config.num_heads, self.key_dim)
        return -jnp.exp(self.param("log_rate", jnp.float32))[None, None, :, None] * step

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


def channel_delta(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B T H K"],
    v: Float[Array, "B T H V"],
    log_decay: Float[Array, "B T H K"],
    beta: Float[Array, "B T H"],
    state: Float[Array, "B H K V"] | None,
    segments: Segments | None,
    chunk_length: int,
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H K V"]]:
    """Returns what each token reads and the final state, all fp32; `log_decay` is at most 0.

    The state resets at the first token of a segment, but not at a row's first one; padding reads zeros and writes
    nothing. The WY form of the delta rule (arXiv:2510.26692, section 3.1), a chunk of tokens at a time; chunks are
    computed again in the backward pass.
    """
    rows, length, heads, key_dim = k.shape
    resets, real = jnp.zeros((rows, length), jnp.int32), jnp.ones((rows, length), bool)
    if segments is not None:
        resets, real = segments
    k, log_decay = (jnp.where(real[..., None, None], x, 0.0) for x in (k, log_decay))
    start = jnp.zeros((rows, heads, key_dim, v.shape[-1]), jnp.float32) if state is None else state.astype(jnp.float32)
    size = min(length, chunk_length)
    fill = -length % size

    def chunked(x: jax.Array) -> jax.Array:
        # Tokens that fill the last chunk have no key and no decay, and belong to the last segment.
        mode = "edge" if x is resets else "constant"
        x = jnp.pad(x, [(0, 0), (0, fill)] + [(0, 0)] * (x.ndim - 2), mode=mode)
        return jnp.moveaxis(x.reshape(rows, -1, size, *x.shape[2:]), 1, 0)

    chunks = tuple(chunked(x) for x in (q, k, v, log_decay, beta, resets))
    (final, _), out = jax.lax.scan(_one_chunk, (start, jnp.zeros((rows,), jnp.int32)), chunks)
    out = jnp.moveaxis(out, 0, 1).reshape(rows, -1, heads, v.shape[-1])[:, :length]
    return jnp.where(real[..., None, None], out, 0.0), final


@jax.checkpoint
def _one_chunk(
    carry: tuple[jax.Array, jax.Array], chunk: tuple[jax.Array, ...]
) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """Returns the state after a chunk with its count of resets, and what the chunk's tokens read, [B, C, H, V]."""
    state, entered = carry
    q, k, v, log_decay, beta, resets = chunk
    size = q.shape[1]
    total = jnp.cumsum(log_decay, axis=1)

    def decay(exponent: jax.Array, reaches: jax.Array) -> jax.Array:
        # Masked before the exponential: outside of the mask the exponent may be large and positive.
        return jnp.exp(jnp.where(reaches[..., None, None], exponent, -jnp.inf))

    last = resets[:, -1:]
    same = (resets[:, :, None] == resets[:, None]) & jnp.tril(jnp.ones((size, size), bool))[None]
    between = decay(total[:, :, None] - total[:, None], same)
    reach = decay(total, resets == entered[:, None])
    leave = decay(total[:, -1:] - total, resets == last)
    through = decay(total[:, -1:], last == entered[:, None])[:, 0]
    # A token writes beta (v - what the state and the chunk's earlier tokens return for its key): a triangular system.
    overlap = jnp.einsum("bthk,bshk,btshk->bhts", k, k, between)
    below = jnp.tril(overlap, -1) * jnp.swapaxes(beta, 1, 2)[..., None]
    known = jnp.einsum("bthk,bhkv->bthv", k * reach, state)
    right = jnp.moveaxis(beta[..., None] * (v - known), 1, 2)
    written = jnp.matmul(unit_lower_inverse(below), right, precision=jax.lax.Precision.HIGHEST)
    scores = jnp.einsum("bthk,bshk,btshk->bhts", q, k, between)
    out = jnp.einsum("bhts,bhsv->bthv", scores, written) + jnp.einsum("bthk,bhkv->bthv", q * reach, state)
    state = through[..., None] * state + jnp.einsum("bshk,bhsv->bhkv", k * leave, written)
    return (state, last[:, 0]), out


def _unit(x: Float[Array, "B T H K"]) -> Float[Array, "B T H K"]:
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)
