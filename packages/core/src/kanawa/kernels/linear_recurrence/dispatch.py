"""The public call: checks shapes, makes the problem, and runs the best kernel.

Legend: B rows, T tokens, G groups of q and k, H heads, K key width, V value width.
"""

from typing import Any

import jax
import jax.numpy as jnp

from kanawa.errors import KernelError
from kanawa.kernels.bad_input import first_bad, mixed_dtypes, not_floats, not_integers, refuse_bad_input, values
from kanawa.kernels.linear_recurrence.problem import LINEAR_RECURRENCE, LinearRecurrenceProblem
from kanawa.kernels.run import run


def linear_recurrence(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    log_decay: jax.Array | None = None,
    beta: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    chunk_length: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Returns (out [B, T, H, V] in the dtype of v, final state fp32 [B, H, K, V]).

    For each row and head, with a_t = exp(log_decay_t):

        S_t = a_t S_(t-1) + k_t v_t^T                                        without beta
        S_t = a_t (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T          with beta, the delta rule
        out_t = S_t^T q_t

    Decays and states are fp32; products take the operands' dtype and accumulate in fp32.

    Args:
        q, k: [B, T, G, K]; head h uses group h // (H / G). Nothing is scaled here.
        v: [B, T, H, V].
        log_decay: float [B, T, H], at most 0; None for no decay.
        beta: float [B, T, H], the share of the delta that is written. Keys should then have length 1.
        initial_state: float [B, H, K, V]; None for zeros.
        segment_ids: int [B, T]. The state resets where the id changes, except before a row's first
            token, which continues the initial state. 0 is padding: it reads zeros and leaves
            the state as it is, so that the final state is that after the last token.
        chunk_length: tokens worked on at a time; None leaves it to the kernel.

    Differentiable in all floating-point operands. Raises KernelError where shapes don't fit
    together or no kernel applies. Source: arXiv:2405.21060 (decay), arXiv:2412.06464 (delta rule).
    """
    operands: dict[str, Any] = {"q": q, "k": k, "v": v, "log_decay": log_decay, "beta": beta}
    operands |= {"initial_state": initial_state, "segment_ids": segment_ids}
    operands = {name: x for name, x in operands.items() if x is not None}
    _check(operands, chunk_length)
    batch, length, heads, value_dim = v.shape
    operands.setdefault("log_decay", jnp.zeros((batch, length, heads), jnp.float32))
    problem = LinearRecurrenceProblem(
        batch=batch,
        length=length,
        num_groups=k.shape[2],
        num_heads=heads,
        key_dim=k.shape[3],
        value_dim=value_dim,
        dtype=str(v.dtype),
        delta=beta is not None,
        has_initial_state=initial_state is not None,
        has_segments=segment_ids is not None,
        chunk_length=chunk_length,
    )
    result: tuple[jax.Array, jax.Array] = run(LINEAR_RECURRENCE, problem, operands)
    return result


def _check(operands: dict[str, Any], chunk_length: int | None) -> None:
    """Raises KernelError naming the first operand that doesn't fit."""
    k, v = operands["k"], operands["v"]
    for name, x in (("k", k), ("v", v)):
        if x.ndim != 4:
            message = f"linear_recurrence: {name} has shape {x.shape}; it must have 4 dimensions"
            raise KernelError(message)
    batch, length, heads, value_dim = v.shape
    groups, key_dim = k.shape[2:]
    wanted = {
        "q": (batch, length, groups, key_dim),
        "k": (batch, length, groups, key_dim),
        "log_decay": (batch, length, heads),
        "beta": (batch, length, heads),
        "initial_state": (batch, heads, key_dim, value_dim),
        "segment_ids": (batch, length),
    }
    for name, shape in wanted.items():
        if name in operands and operands[name].shape != shape:
            shapes = f"k {k.shape} and v {v.shape}"
            message = f"linear_recurrence: {name} has shape {operands[name].shape}; {shapes} ask for {shape}"
            raise KernelError(message)
    if heads % groups:
        message = f"linear_recurrence: {heads} heads of v are not a multiple of {groups} groups of q and k"
        raise KernelError(message)
    if length == 0 or (chunk_length is not None and chunk_length < 1):
        message = f"linear_recurrence: length {length} and chunk_length {chunk_length} must be at least 1"
        raise KernelError(message)
    broken = not_integers(operands, ("segment_ids",), "ids, 0 for padding,")
    broken += not_floats(operands, ("q", "k", "v", "log_decay", "beta", "initial_state"))
    broken += mixed_dtypes(operands, ("q", "k", "v"))
    decay = values(operands.get("log_decay"))
    if decay is not None:
        # Written so that NaN is wrong too.
        broken += first_bad("log_decay", decay, ~(decay <= 0), "a state doesn't grow: logarithms are at most 0")
    refuse_bad_input("linear_recurrence", broken)
