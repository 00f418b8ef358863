"""Kimi delta attention: a gated delta network whose decay is one number for each key channel (Kimi Linear).

Legend: B rows, T tokens, C tokens of a chunk, H heads, K key width, V value width.
"""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.kernels.segments import Segments

from kanawa_layers.attention.projections import head_dim_of
from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.kernels.linear_recurrence import unit_lower_inverse
from kanawa_layers.recurrent.delta_rule import NAMES, DeltaRule


class KimiDeltaAttention(DeltaRule):
    """S_t = (I - beta_t k_t k_t^T) diag(a_t) S_(t-1) + beta_t k_t v_t^T; out = norm(S_t^T q_t) sigmoid(gate).

    a = exp(-exp(log_rate) softplus(decay_up(decay_down(x)) + step_bias)), one number for each head and key channel;
    gate = gate_up(gate_down(x)) (Kimi Linear, arXiv:2510.26692, section 3); both pass through `rank` channels, by
    default head_dim. Chunks of `chunk_length` tokens are matmuls; decays within one are [B, C, C, H, K]. The rest is
    `DeltaRule`'s.
    """

    decay_down: Linear
    decay_up: Linear
    gate_down: Linear
    gate_up: Linear

    class Config(DeltaRule.Config):
        rank: kn.Size | None = None
        chunk_length: kn.Size = 16
        decay_down: Linear.Config = Linear.Config()
        decay_up: Linear.Config = Linear.Config()
        gate_down: Linear.Config = Linear.Config()
        gate_up: Linear.Config = Linear.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"log_rate": "A_log", "step_bias": "dt_bias"},
            children={
                **NAMES,
                "decay_down": "f_a_proj",
                "decay_up": "f_b_proj",
                "gate_down": "g_a_proj",
                "gate_up": "g_b_proj",
            },
        )

    def setup(self) -> None:
        """Declares what a delta rule has, a decay for each key channel, and the gate."""
        cfg = self.config
        keys = cfg.num_heads * head_dim_of(self)
        self.declare(cfg.num_heads, keys, "mlp")
        rank = cfg.rank or self.key_dim
        for name, width in (("decay", keys), ("gate", self.values)):
            add_linear(self, f"{name}_down", cfg.input_dim, rank, ("embed", None))
            add_linear(self, f"{name}_up", rank, width, (None, "mlp"))

    def raw_step(self, x: Float[Array, "B T E"]) -> Float[Array, "B T HK"]:
        """Returns the decay's two projections."""
        return self.decay_up(self.decay_down(x))

    def gate(self, x: Float[Array, "B T E"]) -> Float[Array, "B T HV"]:
        """Returns the sigmoid of the gate's two projections."""
        return jax.nn.sigmoid(self.gate_up(self.gate_down(x)))

    def recur(
        self,
        heads: dict[str, jax.Array],
        step: Float[Array, "B T HK"],
        beta: Float[Array, "B T H"],
        state: Float[Array, "B H K V"] | None,
        segments: Segments | None,
        segment_ids: jax.Array | None,
    ) -> tuple[Float[Array, "B T H V"], Float[Array, "B H K V"]]:
        """Returns what each token reads, and the state after the last one."""
        del segment_ids
        q, k, v = (heads[name].astype(jnp.float32) for name in ("query", "key", "value"))
        rate = -jnp.exp(self.param("log_rate", jnp.float32))[None, None, :, None]
        return channel_delta(q, k, v, rate * step.reshape(k.shape), beta, state, segments, self.config.chunk_length)


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
