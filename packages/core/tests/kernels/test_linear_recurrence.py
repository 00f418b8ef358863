"""Linear recurrence: the reference against NumPy, segments, pieces, shards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, use_plan
from kanawa.errors import KernelError
from kanawa.kernels.linear_recurrence import linear_recurrence
from kanawa_kernel_tools.examples.linear_recurrence import BASE, example_operands

REFERENCE = ExecutionPlan(kernels=KernelPolicy(pins=(("linear_recurrence", "linear_recurrence.any.reference"),)))


def operands(**changes):
    import dataclasses

    problem = dataclasses.replace(BASE, **changes)
    drawn = example_operands(problem, np.random.default_rng(3))
    return {name: jnp.asarray(x) for name, x in drawn.items()}


def run(given, **options):
    given = dict(given)
    return jax.jit(lambda o: linear_recurrence(o.pop("q"), o.pop("k"), o.pop("v"), **o, **options))(given)


@pytest.mark.parametrize("delta", [False, True])
def test_the_reference_is_the_published_formula(delta):
    given = operands(delta=delta, length=6, batch=1, has_initial_state=True)
    with use_plan(REFERENCE):
        out, final = run(given)
    x = {name: np.asarray(array[0], np.float64) for name, array in given.items()}
    for head in range(4):
        state, group = x["initial_state"][head], head // 2
        for t in range(6):
            k, v, decay = x["k"][t, group], x["v"][t, head], np.exp(x["log_decay"][t, head])
            if delta:
                beta = x["beta"][t, head]
                state = decay * (np.eye(16) - beta * np.outer(k, k)) @ state + beta * np.outer(k, v)
            else:
                state = decay * state + np.outer(k, v)
            np.testing.assert_allclose(out[0, t, head], state.T @ x["q"][t, group], atol=1e-5)
        np.testing.assert_allclose(final[0, head], state, atol=1e-5)


def test_packed_segments_equal_separate_rows():
    given = operands(delta=True, batch=1, length=20, has_initial_state=True)
    ids = jnp.array([[3] * 7 + [1] * 9 + [0] * 4])
    out, final = run({**given, "segment_ids": ids}, chunk_length=4)

    def alone(start, stop, first):
        rest = {n: x[:, start:stop] for n, x in given.items() if n != "initial_state"}
        return run({**rest, **({"initial_state": given["initial_state"]} if first else {})}, chunk_length=16)

    np.testing.assert_allclose(out[:, :7], alone(0, 7, True)[0], atol=1e-5)
    second = alone(7, 16, False)
    np.testing.assert_allclose(out[:, 7:16], second[0], atol=1e-5)
    np.testing.assert_allclose(final, second[1], atol=1e-5)
    assert not np.any(out[:, 16:])


def test_a_row_in_pieces_equals_the_row():
    given = operands(delta=True, length=19)
    whole, final = run(given, chunk_length=8)
    state, parts = jnp.zeros_like(final), []
    for start, stop in ((0, 11), (11, 18), (18, 19)):
        out, state = run({**{n: x[:, start:stop] for n, x in given.items()}, "initial_state": state})
        parts.append(out)
    np.testing.assert_allclose(jnp.concatenate(parts, 1), whole, atol=1e-5)
    np.testing.assert_allclose(state, final, atol=1e-5)


def test_padding_on_the_left_and_between_leaves_the_state_alone():
    given = operands(batch=1, length=6, has_initial_state=True)
    ids = jnp.array([[0, 5, 0, 5, 0, 0]])
    out, final = run({**given, "segment_ids": ids})
    kept = jnp.array([1, 3])
    dense = {n: x if n == "initial_state" else x[:, kept] for n, x in given.items()}
    expected, state = run(dense)
    np.testing.assert_allclose(out[:, kept], expected, atol=1e-6)
    np.testing.assert_allclose(final, state, atol=1e-6)


def test_sharded_over_rows_and_heads_equals_one_device():
    from jax.sharding import AxisType

    given = operands(delta=True, num_groups=4, has_segments=True)
    expected = run(given)
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    rules = (("batch", ("data",)), ("heads", ("tensor",)), ("kv_heads", ("tensor",)))
    with use_plan(ExecutionPlan(activation_rules=rules)), jax.set_mesh(mesh):
        found = run(given)
    for mine, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, right, atol=1e-5)


def test_wrong_operands_are_named():
    given = operands(length=4)
    q, k, v = given["q"], given["k"], given["v"]
    with pytest.raises(KernelError, match=r"q has shape \(2, 3, 2, 16\); k .* ask for \(2, 4, 2, 16\)"):
        linear_recurrence(q[:, :3], k, v)
    with pytest.raises(KernelError, match="3 heads of v are not a multiple of 2 groups"):
        linear_recurrence(q, k, v[:, :, :3])
    with pytest.raises(KernelError, match="segment_ids is float32; ids, 0 for padding, are integers"):
        linear_recurrence(q, k, v, segment_ids=jnp.ones((2, 4)))
    with pytest.raises(KernelError, match="chunk_length 0 must be at least 1"):
        linear_recurrence(q, k, v, chunk_length=0)
