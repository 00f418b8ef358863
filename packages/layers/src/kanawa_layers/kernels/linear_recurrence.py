"""linear_recurrence.any.chunked: matrix products inside chunks, a scan of one state a chunk between them.

The state-space duality of Mamba-2 (Dao and Gu 2024, arXiv:2405.21060, section 6), and with the delta rule the WY form
of gated delta networks (Yang et al. 2024, arXiv:2412.06464, section 3.3). Decays and states are fp32; products take the
operands' dtype and accumulate in fp32.

Legend: B rows, N chunks, T and S tokens of a chunk, G groups of q and k, R heads a group, K key width, V value width.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from kanawa.kernels.linear_recurrence import LinearRecurrenceProblem
from kanawa.kernels.operation import Operands, UniversalKernel
from kanawa.kernels.segments import segments

#: Tokens of a chunk by default. Inside, work grows with the chunk; between, with its inverse. The delta rule inverts a
#: matrix of this size for each chunk and head.
CHUNK_LENGTH = 128
DELTA_CHUNK_LENGTH = 64

OutAndState = tuple[jax.Array, jax.Array]


class ChunkedLinearRecurrence(UniversalKernel):
    """Keeps no state but one a chunk; the backward pass computes the chunks again."""

    name: ClassVar[str] = "linear_recurrence.any.chunked"
    operation: ClassVar[str] = "linear_recurrence"
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True

    def forward(self, problem: LinearRecurrenceProblem, operands: Operands) -> tuple[OutAndState, None]:
        """Returns ((out [B, T, H, V], final state [B, H, K, V]), None)."""
        return self.apply(problem, operands), None

    def apply(self, problem: LinearRecurrenceProblem, operands: Operands) -> OutAndState:
        """Returns out in the dtype of v, and the final state in fp32."""
        p = problem
        size = chunk_length(p)
        q, k = _chunks(p, operands["q"], size), _chunks(p, operands["k"], size)
        v = _by_head(p, _chunks(p, operands["v"], size))
        span = _span(p, operands, size)
        # What isn't a token has no key: it writes nothing.
        k = jnp.where(span.real[..., None, None], k, jnp.zeros((), k.dtype))
        start = jnp.zeros((p.batch, p.num_heads, p.key_dim, p.value_dim), jnp.float32)
        start = _by_group(p, operands["initial_state"].astype(jnp.float32) if p.has_initial_state else start, 1)
        if p.delta:
            beta = _by_head(p, _chunks(p, operands["beta"], size))
            states, final, written = _delta_states(span, k, v, beta, start)
        else:
            states, final = _decayed_states(span, k, v, start)
            written = v
        # Within a chunk the recurrence is attention without a softmax, whose weights are decays; between chunks only
        # the state is passed on. Both parts are matmuls, where token by token there would be none.
        scores = jnp.einsum("bntgk,bnsgk->bngts", q, k, preferred_element_type=jnp.float32)
        weights = scores[:, :, :, None] * span.between
        out = _product("bngrts,bngrsv->bntgrv", weights.astype(v.dtype), written)
        out += _product("bntgk,bngrkv->bntgrv", q, states) * jnp.moveaxis(span.reach, -1, 2)[..., None]
        # Padding has a query too, which would read the current state: zero, as in the reference.
        out = jnp.where(span.real[..., None, None, None], out, 0.0)
        out = out.reshape(p.batch, -1, p.num_heads, p.value_dim)[:, : p.length]
        return out.astype(v.dtype), final.reshape(p.batch, p.num_heads, p.key_dim, p.value_dim)

    def backward(
        self, problem: LinearRecurrenceProblem, operands: Operands, out: Any, residuals: None, cotangents: Any
    ) -> dict[str, jax.Array]:
        """Returns cotangents, through the chunks computed again."""
        floats = {n: x for n, x in operands.items() if n != "segment_ids"}
        rest = {n: x for n, x in operands.items() if n == "segment_ids"}
        _, pull = jax.vjp(lambda floats: self.apply(problem, {**floats, **rest}), floats)
        result: dict[str, jax.Array] = pull(tuple(cotangents))[0]
        return result


class _Span(NamedTuple):
    """How far states reach, all 0 across a reset.

    Attributes:
        between: decay from token s to a later token t of the chunk, [B, N, G, R, T, S].
        reach: decay from the chunk's start to after token t, [B, N, G, R, T].
        leave: decay from token s to the chunk's end, [B, N, G, R, S].
        real: bool [B, N, T].
    """

    between: jax.Array
    reach: jax.Array
    leave: jax.Array
    real: jax.Array

    @property
    def through(self) -> jax.Array:
        """Decay from start to end, [B, N, G, R]."""
        return self.reach[..., -1]


def chunk_length(problem: LinearRecurrenceProblem) -> int:
    """Returns how many tokens a chunk holds."""
    default = DELTA_CHUNK_LENGTH if problem.delta else CHUNK_LENGTH
    return min(problem.length, problem.chunk_length or default)


def _span(problem: LinearRecurrenceProblem, operands: Operands, size: int) -> _Span:
    p = problem
    log_decay = operands["log_decay"].astype(jnp.float32)
    resets, real = jnp.zeros((p.batch, p.length), jnp.int32), jnp.ones((p.batch, p.length), bool)
    if p.has_segments:
        resets, real = segments(operands["segment_ids"])
    real, log_decay = _chunks(p, real, size), _by_head(p, _chunks(p, log_decay, size))
    # Decays multiply, so their logarithms add: a difference of two sums is the decay between two tokens. As products
    # of many factors below one they would vanish in fp32.
    total = jnp.cumsum(jnp.where(real[:, :, None, None], log_decay, 0.0), axis=-1)
    # Tokens that fill the last chunk belong to the last segment, so that its state passes through them.
    fill = -p.length % size
    resets = jnp.pad(resets, ((0, 0), (0, fill)), mode="edge").reshape(p.batch, -1, size)
    entering = jnp.pad(resets[:, :-1, -1], ((0, 0), (1, 0)))[:, :, None]

    def decay(exponent: jax.Array, reaches: jax.Array) -> jax.Array:
        # Masked before the exponential: outside of the mask the exponent may be large and positive.
        return jnp.exp(jnp.where(reaches, exponent, -jnp.inf))

    same = (resets[:, :, :, None] == resets[:, :, None, :]) & jnp.tril(jnp.ones((size, size), bool))[None, None]
    return _Span(
        decay(total[..., :, None] - total[..., None, :], same[:, :, None, None]),
        decay(total, (resets == entering)[:, :, None, None]),
        decay(total[..., -1:] - total, (resets == resets[:, :, -1:])[:, :, None, None]),
        real,
    )


def _decayed_states(span: _Span, k: jax.Array, v: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the states [B, N, G, R, K, V] that enter each chunk, and the final one."""
    added = _product("bnsgk,bngrsv->bngrkv", k, v * span.leave[..., None].astype(v.dtype))

    def one_chunk(state: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        through, new = chunk
        return through[..., None, None] * state + new, state

    final, states = jax.lax.scan(one_chunk, start, (_by_chunk(span.through), _by_chunk(added)))
    return jnp.moveaxis(states, 0, 1), final


def _delta_states(
    span: _Span, k: jax.Array, v: jax.Array, beta: jax.Array, start: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns entering states, the final one, and what each token writes, [B, N, G, R, T, V].

    Token t writes beta (v - reach k^T state - sum over s < t of between k_t^T k_s written_s): a triangular system,
    whose solution is affine in the state that enters.
    """
    beta32 = beta.astype(jnp.float32)
    overlap = jnp.einsum("bntgk,bnsgk->bngts", k, k, preferred_element_type=jnp.float32)
    # The recurrence as (I + A) written = right-hand side, with A strictly lower triangular: A[t, s] = beta_t decay(s to
    # t) k_t . k_s.
    below = jnp.tril(span.between, -1) * overlap[:, :, :, None]
    # Solved once for each chunk and for all heads together; a loop over tokens would run a matrix unit on vectors.
    inverse = unit_lower_inverse(below * beta32[..., None])
    # The inverse has entries that grow with the chunk: products with it in bf16 passes lose what the delta rule
    # corrects.
    exact = jax.lax.Precision.HIGHEST
    own = jnp.matmul(inverse, beta32[..., None] * v.astype(jnp.float32), precision=exact)
    keys = (beta32 * span.reach)[..., None] * jnp.moveaxis(k, 2, 3).astype(jnp.float32)[:, :, :, None]
    corrected = jnp.matmul(inverse, keys, precision=exact).astype(v.dtype)

    def one_chunk(state: jax.Array, chunk: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        own, corrected, k, leave, through = chunk
        # What the entering state holds for these keys already isn't written again; only this step needs the state, so
        # only this is sequential.
        written = own - _product("bgrtk,bgrkv->bgrtv", corrected, state)
        added = _product("bsgk,bgrsv->bgrkv", k, (written * leave[..., None]).astype(k.dtype))
        return through[..., None, None] * state + added, (state, written.astype(k.dtype))

    chunks = tuple(_by_chunk(x) for x in (own, corrected, k, span.leave, span.through))
    final, (states, written) = jax.lax.scan(one_chunk, start, chunks)
    return jnp.moveaxis(states, 0, 1), final, jnp.moveaxis(written, 0, 1)


def unit_lower_inverse(below: jax.Array) -> jax.Array:
    """Returns (I + below)^-1 for strictly lower triangular matrices [..., T, T], fp32.

    Inverses of diagonal blocks are joined to those of twice the size: the corner between two blocks X and Y, where
    `below` has B, is -Y B X. As stable as substitution, which a power series of `below` would not be.
    """
    size = below.shape[-1]
    index = jnp.arange(size)
    lead = (1,) * (below.ndim - 2)
    inverse = jnp.broadcast_to(jnp.eye(size, dtype=below.dtype).reshape(*lead, size, size), below.shape)
    block = 1
    while block < size:
        pair = index // (2 * block)
        # Same pair, different block: `below` is strictly lower, so of the two corners only the lower left one holds
        # anything. By masks, not slices: every size works, and all pairs are done in one product.
        corner = (pair[:, None] == pair[None, :]) & ((index // block)[:, None] != (index // block)[None, :])
        part = jnp.where(corner.reshape(*lead, size, size), below, 0.0)
        joined = jnp.matmul(part, inverse, precision=jax.lax.Precision.HIGHEST)
        inverse = inverse - jnp.matmul(inverse, joined, precision=jax.lax.Precision.HIGHEST)
        block *= 2
    return inverse


def _chunks(problem: LinearRecurrenceProblem, x: jax.Array, size: int) -> jax.Array:
    """Returns [B, T, …] as [B, N, size, …], filled with zeros."""
    fill = -problem.length % size
    x = jnp.pad(x, [(0, 0), (0, fill)] + [(0, 0)] * (x.ndim - 2))
    return x.reshape(problem.batch, -1, size, *x.shape[2:])


def _by_head(problem: LinearRecurrenceProblem, x: jax.Array) -> jax.Array:
    """Returns [B, N, T, H, …] as [B, N, G, R, T, …]."""
    return jnp.moveaxis(_by_group(problem, x, 3), 2, 4)


def _by_group(problem: LinearRecurrenceProblem, x: jax.Array, axis: int) -> jax.Array:
    """Returns x with the heads on `axis` as two axes [G, R]."""
    shape = (*x.shape[:axis], problem.num_groups, problem.num_heads // problem.num_groups, *x.shape[axis + 1 :])
    return x.reshape(shape)


def _by_chunk(x: jax.Array) -> jax.Array:
    return jnp.moveaxis(x, 1, 0)


def _product(spec: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the fp32 product of x and y, y rounded to the dtype of x first."""
    return jnp.einsum(spec, x, y.astype(x.dtype), preferred_element_type=jnp.float32)
