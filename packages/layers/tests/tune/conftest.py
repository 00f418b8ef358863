"""The plain model, made once."""

import jax
import pytest
import sashimono as sm

from .tiny_llama import logits, tiny


@pytest.fixture(scope="session")
def plain():
    """The plain module, its parameters, and its logits."""
    module = tiny().build()
    params = jax.jit(lambda k: sm.initialize(module, k))(jax.random.key(0))
    return module, params, logits(module, params)
