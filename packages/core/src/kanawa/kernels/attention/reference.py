"""attention.any.reference: the truth for attention on any device, in plain JAX.

Softmax in fp32, products in the operands' dtype with fp32 accumulation. Differentiated by JAX;
`forward` and `backward` exist so that it can be an inner kernel of ring attention, which needs the
log-sum-exp.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from kanawa.kernels.attention import scores as sc
from kanawa.kernels.attention.dropout import weight_factors
from kanawa.kernels.attention.operands import mask_array
from kanawa.kernels.attention.paged import gather_pages
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Operands, UniversalKernel


class ReferenceAttention(UniversalKernel):
    """Materialises the scores [B, H, T, S]. Supports every problem."""

    name: ClassVar[str] = "attention.any.reference"
    operation: ClassVar[str] = "attention"
    autodiff: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"alibi", "dropout", "lookahead", "pages of bits"})

    def apply(self, problem: AttentionProblem, operands: Operands) -> jax.Array:
        """Returns out [B, T, H, Dv] in the dtype of v. A row that may attend to nothing is zero."""
        problem, operands = gather_pages(problem, operands)
        mask = mask_array(problem, operands)
        scores = _scores(problem, operands, mask)
        if problem.has_sinks:
            probs = _softmax_with_sinks(scores, operands["sinks"], problem)
        else:
            probs = jax.nn.softmax(scores, axis=-1)
        if problem.dropout_rate:
            probs = probs * weight_factors(problem, operands, probs.dtype)
        out = sc.weigh_values(probs, operands["v"], problem)
        return _zero_hidden_rows(out, scores, mask, operands, problem)

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns (out, log-sum-exp fp32 [B, H, T]): sinks included, -inf for an empty row."""
        dense_problem, dense = gather_pages(problem, operands)
        scores = _scores(dense_problem, dense, mask_array(dense_problem, dense))
        if problem.has_sinks:
            sinks = sc.sinks_to_scores(operands["sinks"], problem)
            sinks = jnp.broadcast_to(sinks, (*scores.shape[:-1], 1))
            scores = jnp.concatenate([scores, sinks], axis=-1)
        lse = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
        rows = sc.scores_to_rows(lse, problem)
        # A score of infinity leaves no weight that is a number.
        rows = jnp.where(rows == jnp.inf, jnp.nan, rows)
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
        """Returns cotangents by a log-sum-exp that may be of more keys than these."""
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


def _scores(problem: AttentionProblem, operands: Operands, mask: jax.Array | None) -> jax.Array:
    """Returns the scores with bias and mask; in serving at least MASKED: minus infinity hides a key as a mask does."""
    scores, _ = sc.masked_scores(problem, operands, mask)
    # Under MASKED, a row of such would weigh the masked ones instead, or nothing by nothing. In training, where it
    # would cost a pass over the scores, a row that broke is the step's end anyhow.
    return scores if problem.mode == "train" else jnp.maximum(scores, sc.MASKED)


def _zero_hidden_rows(
    out: jax.Array, scores: jax.Array, mask: jax.Array | None, operands: Operands, problem: AttentionProblem
) -> jax.Array:
    """Returns out with zeros in rows whose keys are hidden one and all, by the mask or by scores of minus infinity."""
    # The softmax of a row of MASKED is uniform, which would give the mean of all values.
    if problem.mode == "train" and not problem.has_bias:
        if mask is None or not problem.may_mask_whole_rows:
            return out
        return jnp.where(jnp.any(mask, axis=-1)[:, :, None, None], out, jnp.zeros((), out.dtype))
    # Not `> MASKED`, which NaN isn't: it has to stay.
    hidden = sc.scores_to_rows(jnp.max(scores, axis=-1, keepdims=True) <= sc.MASKED, problem)
    if problem.has_sinks:
        # What a sink of infinity or NaN leaves is no number, whatever is hidden.
        hidden = hidden & (operands["sinks"][None, :, None] < jnp.inf)
    return jnp.where(hidden.transpose(0, 2, 1)[..., None], jnp.zeros((), out.dtype), out)
