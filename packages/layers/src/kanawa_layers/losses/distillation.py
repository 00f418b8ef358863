"""Distillation (Hinton et al. 2015, arXiv:1503.02531): a student's distribution approaches its teacher's."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def kl_divergence(
    student: Float[Array, "... V"], teacher: Float[Array, "... V"], *, temperature: float = 1.0, reverse: bool = False
) -> Float[Array, "..."]:
    """Returns temperature^2 * KL(teacher || student) of the softmax over the last axis, fp32; 0 where they agree.

    Both are logits, divided by `temperature` first; its square keeps gradients comparable across temperatures.
    `reverse` is KL(student || teacher), which is mode-seeking (MiniLLM, arXiv:2306.08543). No gradient reaches the
    teacher.
    """
    log_p = jax.nn.log_softmax(jax.lax.stop_gradient(teacher).astype(jnp.float32) / temperature)
    log_q = jax.nn.log_softmax(student.astype(jnp.float32) / temperature)
    if reverse:
        log_p, log_q = log_q, log_p
    return temperature**2 * jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
