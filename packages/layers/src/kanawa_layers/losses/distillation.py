"""Distillation (Hinton et al. 2015, arXiv:1503.02531): a student's distribution approaches its teacher's."""

import math

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


def divergence(
    student: Float[Array, "... V"], teacher: Float[Array, "... V"], *, mix: float = 0.0, temperature: float = 1.0
) -> Float[Array, "..."]:
    """Returns temperature^2 times the generalised Jensen-Shannon divergence of the softmax over the last axis, fp32.

    With p the teacher's distribution, q the student's and m = b p + (1 - b) q, it is b KL(p || m) + (1 - b) KL(q || m)
    (GKD, arXiv:2306.13649, equation 1, b = `mix`); at 0 it is KL(p || q), at 1 KL(q || p). No gradient reaches the
    teacher.
    """
    if mix in (0.0, 1.0):
        return kl_divergence(student, teacher, temperature=temperature, reverse=mix == 1.0)
    log_p = jax.nn.log_softmax(jax.lax.stop_gradient(teacher).astype(jnp.float32) / temperature)
    log_q = jax.nn.log_softmax(student.astype(jnp.float32) / temperature)
    log_m = jnp.logaddexp(log_p + math.log(mix), log_q + math.log1p(-mix))
    of_teacher = jnp.sum(jnp.exp(log_p) * (log_p - log_m), axis=-1)
    of_student = jnp.sum(jnp.exp(log_q) * (log_q - log_m), axis=-1)
    return temperature**2 * (mix * of_teacher + (1.0 - mix) * of_student)
