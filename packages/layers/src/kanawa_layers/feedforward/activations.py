"""Activations without a function of their own in jax.nn; `jax.nn.gelu` itself is the tanh approximation.

The catalog's kind `activations` lists these, some of jax.nn's, and those of other plugins.
"""

import jax
import jax.numpy as jnp
from jax.nn import relu as relu
from jax.nn import sigmoid as sigmoid
from jax.nn import silu as silu
from jaxtyping import Array, Float


def gelu_exact(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns x * Phi(x) with the error function (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""
    return jax.nn.gelu(x, approximate=False)


def gelu_tanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns the tanh approximation of GELU (the same paper): GPT-2, Gemma."""
    return jax.nn.gelu(x, approximate=True)


def quick_gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns x * sigmoid(1.702 x), the paper's other approximation: CLIP, gpt-oss."""
    return x * jax.nn.sigmoid(1.702 * x)


def squared_relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns max(x, 0)^2 (Primer, So et al. 2021, arXiv:2109.08668)."""
    return jnp.square(jax.nn.relu(x))


def identity(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns x: no activation, as in a bilinear unit."""
    return x
