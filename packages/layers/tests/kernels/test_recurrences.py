"""Recurrences by chunks and by a parallel scan: the reference's numbers, in pieces, over shards, with strong decay."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.kernels.linear_recurrence import linear_recurrence
from kanawa.testing.kernel import KernelConformance
from kanawa_kernel_tools.examples.linear_recurrence import BASE, example_operands
from kanawa_layers.kernels.diagonal_recurrence import AssociativeDiagonalRecurrence
from kanawa_layers.kernels.linear_recurrence import ChunkedLinearRecurrence, unit_lower_inverse


class TestChunked(KernelConformance):
    def kernel(self):
        return ChunkedLinearRecurrence()


class TestAssociative(KernelConformance):
    # Its scans of many levels are slow to compile, and its problems differ in sizes alone.
    generated = 4
    fewest_accepted = 4

    def kernel(self):
        return AssociativeDiagonalRecurrence()


def operands(**changes):
    problem = dataclasses.replace(BASE, **changes)
    drawn = example_operands(problem, np.random.default_rng(3))
    return {name: jnp.asarray(x) for name, x in drawn.items()}


def run(given, **options):
    given = dict(given)
    return jax.jit(lambda o: linear_recurrence(o.pop("q"), o.pop("k"), o.pop("v"), **o, **options))(given)


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


def test_strong_decay_stays_finite_with_gradients():
    given = operands(length=64)
    given["log_decay"] = jnp.full_like(given["log_decay"], -60.0)

    def total(o):
        out, final = linear_recurrence(o["q"], o["k"], o["v"], log_decay=o["log_decay"])
        return jnp.sum(out) + jnp.sum(final)

    assert all(np.isfinite(g).all() for g in jax.tree.leaves(jax.jit(jax.grad(total))(given)))


def test_the_inverse_by_blocks_is_the_inverse(normal):
    below = jnp.tril(normal(3, 13, 13), -1)
    found = unit_lower_inverse(below) @ (below + jnp.eye(13)[None])
    np.testing.assert_allclose(found, np.broadcast_to(np.eye(13), (3, 13, 13)), atol=2e-4)


def test_sharded_over_rows_and_heads_equals_one_device():
    given = operands(delta=True, num_groups=4, has_segments=True)
    expected = run(given)
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    rules = (("batch", ("data",)), ("heads", ("tensor",)), ("kv_heads", ("tensor",)))
    with use_plan(ExecutionPlan(activation_rules=rules)), jax.set_mesh(mesh):
        found = run(given)
    for mine, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, right, atol=1e-5)
