"""Attention's backward from its log-sum-exp (FlashAttention-2, algorithm 2), in plain JAX.

With p = exp(score - lse): dv = p^T dout, dscore = p * (dout v^T - rowsum(dout * out)).
"""

import jax
import jax.numpy as jnp

from kanawa.kernels.attention import scores as sc
from kanawa.kernels.attention.dropout import weight_factors
from kanawa.kernels.attention.operands import mask_array
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Operands


def attention_gradient(
    problem: AttentionProblem,
    operands: Operands,
    out: jax.Array,
    lse: jax.Array,
    dout: jax.Array,
) -> dict[str, jax.Array]:
    """Returns cotangents of q, k, v and, where present, bias and sinks, in their dtypes.

    lse: fp32 [B, H, T], possibly over more keys than `operands` hold; out and dout: [B, T, H, Dv].
    """
    delta = row_delta(out, dout)
    mask = mask_array(problem, operands)
    grads = block_gradient(problem, operands, mask, lse, delta, dout)
    if problem.has_bias:
        dscores = grads.pop("scores")
        grads["bias"] = bias_gradient(dscores, problem)
    else:
        grads.pop("scores")
    if problem.has_sinks:
        grads["sinks"] = sinks_gradient(operands["sinks"], lse, delta)
    return {name: grad.astype(operands[name].dtype) for name, grad in grads.items()}


def row_delta(out: jax.Array, dout: jax.Array) -> jax.Array:
    """Returns rowsum(dout * out) in fp32, [B, H, T]."""
    product = out.astype(jnp.float32) * dout.astype(jnp.float32)
    return jnp.sum(product, axis=-1).transpose(0, 2, 1)


def block_gradient(
    problem: AttentionProblem,
    operands: Operands,
    mask: jax.Array | None,
    lse: jax.Array,
    delta: jax.Array,
    dout: jax.Array,
) -> dict[str, jax.Array]:
    """Returns fp32 cotangents of q, k and v, and of the scores before the mask under "scores"."""
    q, k, v = operands["q"], operands["k"], operands["v"]
    scores, capped = sc.masked_scores(problem, operands, mask)
    # A row without keys has lse = -inf; its weights are 0, not exp(MASKED + inf).
    finite = jnp.where(jnp.isneginf(lse), jnp.inf, lse)
    probs = jnp.exp(scores - sc.rows_to_scores(finite, problem))
    folded_dout = sc.fold_heads(dout, problem.num_kv_heads)
    factors = weight_factors(problem, operands, probs.dtype) if problem.dropout_rate else None
    dv = sc.weigh_queries(probs if factors is None else probs * factors, folded_dout, problem)
    dprobs = sc.dot_keys(folded_dout, v, problem)
    if factors is not None:
        # `delta` is the softmax's own gradient with dropout too: out is the sum of the values that dropout leaves.
        dprobs = dprobs * factors
    dscores = probs * (dprobs - sc.rows_to_scores(delta, problem))
    dcapped = dscores
    if problem.logit_cap is not None:
        # d(cap * tanh(s / cap)) = 1 - tanh^2, and tanh is capped / cap. Taken before bias and mask, which come after
        # the cap and of which `dscores` is the cotangent already.
        dcapped = dscores * (1 - jnp.square(capped / problem.logit_cap))
    dcapped = dcapped * problem.scale
    dq = sc.weigh_values(dcapped, k, problem, jnp.float32)
    dk = sc.weigh_queries(dcapped, sc.fold_heads(q, problem.num_kv_heads), problem)
    return {"q": dq, "k": dk, "v": dv, "scores": dscores}


def bias_gradient(dscores: jax.Array, problem: AttentionProblem) -> jax.Array:
    """Returns the bias's cotangent, summed over the dimensions along which it was broadcast."""
    if problem.group_size != 1:
        batch, _, length, _, keys = dscores.shape
        # [B, K, T, G, S] -> [B, K, G, T, S] -> [B, H, T, S]: the query heads of a key head lie side by side.
        dscores = dscores.transpose(0, 1, 3, 2, 4)
        dscores = dscores.reshape(batch, problem.num_heads, length, keys)
    shape = problem.bias_shape or ()
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and dscores.shape[i] != 1)
    return jnp.sum(dscores, axis=axes, keepdims=True)


def sinks_gradient(sinks: jax.Array, lse: jax.Array, delta: jax.Array) -> jax.Array:
    """Returns the sinks' cotangent [H]: each sink's share of the softmax has the value zero."""
    # dscore = p * (dout . value - delta) with a value of 0 leaves -p * delta.
    sinks = sinks.astype(jnp.float32)[None, :, None]
    # A sink of -inf is none. Where a row has no key either, its log-sum-exp is -inf too, and the difference NaN.
    share = jnp.where(jnp.isneginf(sinks), 0.0, jnp.exp(sinks - lse))
    return -jnp.sum(share * delta, axis=(0, 2))
