"""oneDNN's call: its sums, layouts, and what is said where jaxlib has none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa_backends_cpu import onednn

HERE = pytest.mark.skipif(not onednn.available(), reason="this jaxlib has no oneDNN for this processor")


@HERE
def test_bfloat16_accumulates_in_float32():
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in ((96, 64), (64, 80)))
    exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    wide = onednn.call(a, b, dtype=jnp.float32)
    np.testing.assert_allclose(wide, exact, rtol=1e-5, atol=1e-4)
    assert onednn.call(a, b).dtype == jnp.bfloat16


@HERE
def test_strided_operands_are_read_where_they_lie():
    q = jnp.asarray(np.random.default_rng(0).standard_normal((2, 16, 3, 8)), jnp.float32)
    heads = q.transpose(0, 2, 1, 3)
    layouts = ((0, 2, 1, 3), (0, 2, 1, 3))
    scores = jax.jit(lambda x: onednn.call(x, x, transpose_b=True, input_layouts=layouts))(heads)
    np.testing.assert_allclose(scores, jnp.einsum("bthd,bshd->bhts", q, q), rtol=1e-4, atol=1e-4)


def test_where_there_is_none_products_stay_xlas(monkeypatch):
    onednn.available.cache_clear()
    monkeypatch.setattr(onednn, "_TARGET", "__no_such_call")
    assert not onednn.available()
    onednn.available.cache_clear()
