"""Diagonal recurrence: segments against separate rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.errors import KernelError
from kanawa.kernels.diagonal_recurrence import diagonal_recurrence


def test_segments_and_initial_state_equal_a_loop(normal):
    decay, x, start = jax.nn.sigmoid(normal(1, 9, 3)), normal(1, 9, 3), normal(1, 3)
    ids = jnp.array([[2, 2, 2, 7, 7, 0, 7, 1, 0]])
    h, final = jax.jit(lambda: diagonal_recurrence(decay, x, initial_state=start, segment_ids=ids))()
    state, last = np.asarray(start[0]), None
    for t, segment in enumerate(np.asarray(ids[0])):
        if segment == 0:
            continue
        if last is not None and segment != last:
            state = np.zeros(3)
        state, last = np.asarray(decay[0, t]) * state + np.asarray(x[0, t]), segment
        np.testing.assert_allclose(h[0, t], state, atol=1e-6)
    np.testing.assert_allclose(final[0], state, atol=1e-6)


def test_wrong_shapes_are_named(normal):
    with pytest.raises(KernelError, match=r"decay \(1, 2, 3\), x \(1, 2, 4\); expected \[B, T, C\] twice"):
        diagonal_recurrence(normal(1, 2, 3), normal(1, 2, 4))
