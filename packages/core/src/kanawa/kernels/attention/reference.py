"""attention.any.reference: the truth for attention on any device, in plain JAX.

Softmax in fp32, products in the operands' dtype with fp32 accumulation. Differentiated by JAX;
`forward` and `backward` exist so that it can be an inner kernel of ring attention, which needs the
log-sum-exp.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from kanawa.kernels.attention import scores as sc
from kanawa.kernels.attention.dropout import weight_factors
from kanawa.kernels.attention.operands import mask_array
from kanawa.kernels.attention.paged import gather_pages
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import SUPPORTED, Verdict


class ReferenceAttention(Kernel):
    """Materialises the scores [B, H, T, S]. Supports every problem."""

    name: ClassVar[str] = "attention.any.reference"
    operation: ClassVar[str] = "attention"
    autodiff: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"alibi", "dropout", "pages of bits"})

    def supports(self, problem: AttentionProblem, device: Any) -> Verdict:
        """Returns support, always."""
        return SUPPORTED

    def apply(self, problem: AttentionProblem, operands: Operands) -> jax.Array:
        """Returns out [B, T, H, Dv] in the dtype of v. A row that may attend to nothing is zero."""
        problem, operands = gather_pages(problem, operands)
        mask = mask_array(problem, operands)
        scores, _ = sc.masked_scores(problem, operands, mask)
        if problem.has_sinks:
            probs = _softmax_with_sinks(scores, operands["sinks"], problem)
        else:
            probs = jax.nn.softmax(scores, axis=-1)
        if problem.dropout_rate:
            probs = probs * weight_factors(problem, operands, probs.dtype)
        out = sc.weigh_values(probs, operands["v"], problem)
        return _zero_hidden_rows(out, scores, mask, problem)

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns (out, log-sum-exp fp32 [B, H, T]): sinks included, -inf for an empty row."""
        dense_problem, dense = gather_pages(problem, operands)
        scores, _ = sc.masked_scores(dense_problem, dense, mask_array(dense_problem, dense))
        if problem.has_sinks:
            sinks = sc.sinks_to_scores(operands["sinks"], problem)
            sinks = jnp.broadcast_to(sinks, (*scores.shape[:-1], 1))
            scores = jnp.concatenate([scores, sinks], axis=-1)
        lse = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
        rows = sc.scores_to_rows(lse, problem)
        # Masked scores are MASKED, not -inf, and so is the log-sum-exp of a row of them: fp32 rounds log(S) away.
        return self.apply(problem, operands), jnp.where(rows <= sc.MASKED, -jnp.inf, rows)

    def backward(
        self,
        problem: AttentionProblem,
        operands: Operands,
        out: jax.Array,
        residuals: jax.Array,
        cotangents: jax.Array,
    ) -> dict[str, jax.Array]:
        """Returns cotangents, given a log-sum-exp that may be of more keys than these."""
        from kanawa.kernels.attention.gradient import attention_gradient

        return attention_gradient(problem, operands, out, residuals, cotangents)


def _softmax_with_sinks(scores: jax.Array, sinks: jax.Array, problem: AttentionProblem) -> jax.Array:
    """Returns the softmax over keys and one sink, without the sink's share."""
    sink = sc.sinks_to_scores(sinks, problem)
    top = jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), sink)
    # The maximum cancels out of the quotient: differentiating it would add work for a gradient of zero.
    top = jax.lax.stop_gradient(top)
    weights = jnp.exp(scores - top)
    return weights / (jnp.sum(weights, axis=-1, keepdims=True) + jnp.exp(sink - top))


def _zero_hidden_rows(
    out: jax.Array, scores: jax.Array, mask: jax.Array | None, problem: AttentionProblem
) -> jax.Array:
    """Returns out with zeros in rows whose keys the mask, or a bias of -inf, hides one and all."""
    # The softmax of a row of MASKED is uniform, which would give the mean of all values.
    if problem.has_bias:
        seen = sc.scores_to_rows(jnp.max(scores, axis=-1, keepdims=True) > sc.MASKED, problem)
        return jnp.where(seen.transpose(0, 2, 1)[..., None], out, jnp.zeros((), out.dtype))
    if mask is None or not problem.may_mask_whole_rows:
        return out
    seen = jnp.any(mask, axis=-1)[:, :, None, None]
    return jnp.where(seen, out, jnp.zeros((), out.dtype))
