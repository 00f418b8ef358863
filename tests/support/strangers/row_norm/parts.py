"""A kernel of rms_norm for processors."""

import jax
import jax.numpy as jnp
from kanawa.kernels import Kernel, Verdict


class Rows(Kernel):
    """x / rms(x) * scale, in float32."""

    name = "rms_norm.cpu.rows"
    platforms = ("cpu",)
    priority = 10
    autodiff = True

    def supports(self, problem, device):
        """Returns support for even widths."""
        if problem.width % 2:
            return Verdict(ok=False, reason=f"width {problem.width} is odd, takes even ones")
        return Verdict(ok=True)

    def forward(self, problem, operands):
        """Returns the normalised rows."""
        x, scale = (operands[name].astype(jnp.float32) for name in ("x", "scale"))
        rate = jax.lax.rsqrt(jnp.einsum("...e,...e->...", x, x) / problem.width + problem.eps)
        return jnp.einsum("...e,...,e->...e", x, rate, scale).astype(operands["x"].dtype), None
