"""The plain model, made once."""

import jax
import kanawa as kn
import pytest

from .tiny_llama import logits, tiny


@pytest.fixture(scope="session")
def plain():
    """The plain module, its parameters, and its logits."""
    module = tiny().build()
    params = jax.jit(lambda k: kn.initialize(module, k))(jax.random.key(0))
    return module, params, logits(module, params)
