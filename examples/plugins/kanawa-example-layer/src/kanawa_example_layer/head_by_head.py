"""attention.cpu.head-by-head: one key head's scores in memory at a time."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels import Kernel, Verdict


class HeadByHead(Kernel):
    """Scores of one key head, [B, G, T, S], exist at a time. JAX differentiates through it."""

    name: ClassVar[str] = "attention.cpu.head-by-head"
    operation: ClassVar[str] = "attention"
    platforms: ClassVar[tuple[str, ...]] = ("cpu",)
    priority: ClassVar[int] = 100
    autodiff: ClassVar[bool] = True

    def supports(self, problem: Any, device: Any) -> Verdict:
        """Returns support for plain self-attention; a reason for everything else."""
        if problem.has_bias or problem.has_sinks or problem.logit_cap is not None:
            return Verdict(ok=False, reason="takes no bias, sinks or logit cap")
        if problem.mask.needs_prefix:
            return Verdict(ok=False, reason="takes no prefix mask")
        if problem.paged or problem.has_kv_lengths:
            return Verdict(ok=False, reason="is for training: takes neither pages nor kv_lengths")
        return Verdict(ok=True)

    def forward(self, problem: Any, operands: Mapping[str, Any]) -> tuple[jax.Array, None]:
        """Returns out [B, T, H, D] in the dtype of v; softmax is in fp32."""
        q, k, v = operands["q"], operands["k"], operands["v"]
        batch, length, heads, _ = q.shape
        grouped = q.reshape(batch, length, problem.num_kv_heads, -1, problem.head_dim)
        mask = problem.mask.allowed(
            operands.get("q_positions", jnp.arange(problem.q_length)),
            operands.get("kv_positions", jnp.arange(problem.kv_length)),
            operands.get("q_segment_ids"),
            operands.get("kv_segment_ids"),
        )

        def one_key_head(rows: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            q_btgd, k_bsd, v_bsd = rows
            scores = jnp.einsum("btgd,bsd->bgts", q_btgd, k_bsd) * problem.scale
            scores = scores.astype(jnp.float32)
            if mask is not None:
                scores = jnp.where(mask[:, None], scores, jnp.finfo(jnp.float32).min)
            weights = jax.nn.softmax(scores, axis=-1).astype(v_bsd.dtype)
            return jnp.einsum("bgts,bsd->btgd", weights, v_bsd)

        out = jax.lax.map(one_key_head, tuple(jnp.moveaxis(x, 2, 0) for x in (grouped, k, v)))
        return jnp.moveaxis(out, 0, 2).reshape(batch, length, heads, problem.v_head_dim), None
