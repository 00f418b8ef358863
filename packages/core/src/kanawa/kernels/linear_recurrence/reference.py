"""linear_recurrence.any.reference: one token after the other, in fp32. The truth on any device."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from kanawa.kernels.accumulate import wide
from kanawa.kernels.linear_recurrence.problem import LinearRecurrenceProblem
from kanawa.kernels.operation import Operands, UniversalKernel
from kanawa.kernels.segments import segments

#: (out in the dtype of v, final state fp32).
OutAndState = tuple[jax.Array, jax.Array]


class ReferenceLinearRecurrence(UniversalKernel):
    """A `lax.scan` over tokens. Differentiated, it keeps the state of every token."""

    name: ClassVar[str] = "linear_recurrence.any.reference"
    operation: ClassVar[str] = "linear_recurrence"
    autodiff: ClassVar[bool] = True

    def forward(self, problem: LinearRecurrenceProblem, operands: Operands) -> tuple[OutAndState, None]:
        """Returns ((out [B, T, H, V], final state [B, H, K, V]), None)."""
        p, exact = problem, wide(problem.dtype)
        repeats = p.num_heads // p.num_groups
        q, k = (jnp.repeat(operands[n].astype(exact), repeats, axis=2) for n in ("q", "k"))
        tokens = {
            "q": q,
            "k": k,
            "v": operands["v"].astype(exact),
            "decay": jnp.exp(operands["log_decay"].astype(exact)),
            "real": jnp.ones((p.batch, p.length), bool),
            "resets": jnp.zeros((p.batch, p.length), bool),
        }
        if p.delta:
            tokens["beta"] = operands["beta"].astype(exact)
        if p.has_segments:
            count, tokens["real"] = segments(operands["segment_ids"])
            # Counts, whose steps are the resets: the first token of a row never resets, having count 0.
            tokens["resets"] = jnp.diff(count, axis=1, prepend=0) > 0
        state = jnp.zeros((p.batch, p.num_heads, p.key_dim, p.value_dim), exact)
        if p.has_initial_state:
            state = operands["initial_state"].astype(exact)
        by_time = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), tokens)
        state, out = jax.lax.scan(_one_token, state, by_time)
        return (jnp.moveaxis(out, 0, 1).astype(operands["v"].dtype), state), None


def _one_token(state: jax.Array, token: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Returns (state [B, H, K, V] after a token, what the token reads [B, H, V])."""

    def per_row(x: jax.Array) -> jax.Array:
        return x[:, None, None, None]

    decayed = jnp.where(per_row(token["resets"]), 0.0, state) * token["decay"][..., None, None]
    written = token["v"]
    if "beta" in token:
        known = jnp.einsum("bhk,bhkv->bhv", token["k"], decayed)
        written = token["beta"][..., None] * (written - known)
    after = decayed + token["k"][..., :, None] * written[..., None, :]
    after = jnp.where(per_row(token["real"]), after, state)
    out = jnp.einsum("bhk,bhkv->bhv", token["q"], after)
    return after, jnp.where(token["real"][:, None, None], out, 0.0)
