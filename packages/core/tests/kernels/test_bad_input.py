"""What the other operations are refused, before anything is computed: argument, value and rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.errors import KernelError
from kanawa.kernels.diagonal_recurrence import diagonal_recurrence
from kanawa.kernels.grouped_matmul import grouped_matmul
from kanawa.kernels.linear_recurrence import linear_recurrence
from kanawa.kernels.quantized_matmul import quantized_matmul
from kanawa.kernels.softmax_cross_entropy import softmax_cross_entropy
from kanawa.kernels.token_exchange import token_exchange

LHS, RHS = np.ones((6, 4), np.float32), np.ones((2, 4, 3), np.float32)


def grouped(sizes=(2, 3), lhs=LHS, rhs=RHS):
    return grouped_matmul(lhs, rhs, np.asarray(sizes, np.int32))


def quantized(**change):
    given = {
        "lhs": np.ones((5, 8), np.float32),
        "rhs": np.ones((8, 4), np.int8),
        "rhs_scale": np.ones((1, 4), np.float32),
        "rhs_format": "int8",
        "rhs_shape": (8, 4),
        **change,
    }
    return quantized_matmul(given.pop("lhs"), given.pop("rhs"), given.pop("rhs_scale"), **given)


def recurrence(**change):
    q = np.ones((1, 3, 2, 4), np.float32)
    given = {"q": q, "k": q, "v": q, **change}
    return linear_recurrence(given.pop("q"), given.pop("k"), given.pop("v"), **given)


def entropy(targets=(0, 4), weights=(1.0, 1.0), hidden=None, **options):
    hidden = np.ones((2, 3), np.float32) if hidden is None else hidden
    weight = options.pop("weight", np.ones((3, 5), np.float32))
    return softmax_cross_entropy(hidden, weight, np.asarray(targets), np.asarray(weights, np.float32), **options)


def sums(decay, **change):
    return diagonal_recurrence(decay, np.ones((1, 2, 3), np.float32), **change)


SCALES = np.ones((1, 4), np.float32)
WRONG = {
    r"grouped_matmul: group_sizes add up to 7; lhs has 6 rows": lambda: grouped((3, 4)),
    r"group_sizes\[1\] is -1; a group has at least 0 rows": lambda: grouped((3, -1)),
    r"dtypes are mixed \(lhs float32, rhs bfloat16\); cast": lambda: grouped(rhs=RHS.astype(jnp.bfloat16)),
    r"lhs is int32; it must be floating-point": lambda: grouped(lhs=LHS.astype(np.int32), rhs=RHS.astype(np.int32)),
    r"quantized_matmul: rhs_scale\[0, 2\] is -1.0; a scale is finite and at least 0": lambda: quantized(
        rhs_scale=SCALES * np.array([1, 1, -1, 1], np.float32)
    ),
    r"rhs_scale\[0, 0\] is nan \(and 3 more\)": lambda: quantized(rhs_scale=SCALES * np.float32("nan")),
    r"lhs_scale\[4\] is inf": lambda: quantized(
        lhs=np.ones((5, 8), np.int8), lhs_scale=np.array([1, 1, 1, 1, np.inf], np.float32)
    ),
    r"num_contracted 3 must be 1 to 2": lambda: quantized(num_contracted=3),
    r"num_contracted 0 must be 1 to 2": lambda: quantized(num_contracted=0),
    r"rhs_scale is int32; it must be floating-point": lambda: quantized(rhs_scale=SCALES.astype(np.int32)),
    r"lhs is int32; it must be floating-point, or int8 or float8": lambda: quantized(lhs=np.ones((5, 8), np.int32)),
    r"8 can't be split in 3 equal groups": lambda: quantized(rhs_scale=np.ones((3, 4), np.float32)),
    r"linear_recurrence: log_decay\[0, 2, 1\] is 0.5; a state doesn't grow": lambda: recurrence(
        log_decay=np.array([[[0, 0], [0, -1], [0, 0.5]]], np.float32)
    ),
    r"log_decay\[0, 0, 0\] is nan": lambda: recurrence(log_decay=np.full((1, 3, 2), np.nan, np.float32)),
    r"dtypes are mixed \(q float32, k float32, v bfloat16\)": lambda: recurrence(
        v=np.ones((1, 3, 2, 4)).astype(jnp.bfloat16)
    ),
    r"beta is int32; it must be floating-point": lambda: recurrence(beta=np.ones((1, 3, 2), np.int32)),
    r"diagonal_recurrence: segment_ids is float32; ids, 0 for padding, are integers": lambda: sums(
        np.ones((1, 2, 3), np.float32), segment_ids=np.ones((1, 2), np.float32)
    ),
    r"decay is int32; it must be floating-point": lambda: sums(np.ones((1, 2, 3), np.int32)),
    r"softmax_cross_entropy: targets\[1\] is 5; its weight isn't 0, and the vocabulary has ids 0 to 4": lambda: entropy(
        (0, 5)
    ),
    r"targets\[0\] is -100": lambda: entropy((-100, 0)),
    r"targets is float32; targets are integers": lambda: entropy(np.float32([0, 1])),
    r"label_smoothing 1 must be at least 0 and less than 1": lambda: entropy(label_smoothing=1.0),
    r"z_loss -1 must be at least 0 and less than inf": lambda: entropy(z_loss=-1.0),
    r"z_loss nan must be at least 0": lambda: entropy(z_loss=float("nan")),
    r"logit_cap -3 must be positive and finite": lambda: entropy(logit_cap=-3.0),
    r"hidden is int32; it must be floating-point": lambda: entropy(hidden=np.ones((2, 3), np.int32)),
    r"weight \(3,\).*expected \[N, D\]": lambda: entropy(weight=np.ones(3, np.float32)),
    r"token_exchange: send_sizes add up to 7; there are 6 rows": lambda: token_exchange(
        LHS, np.array([7]), output_rows=8
    ),
    r"send_sizes\[0\] is -1; a shard is sent at least 0 rows": lambda: token_exchange(
        LHS, np.array([-1]), output_rows=8
    ),
    r"output_rows -2 must be at least 0": lambda: token_exchange(LHS, np.array([3]), output_rows=-2),
}


@pytest.mark.parametrize("words", WRONG)
def test_bad_input_is_refused_by_name(words):
    with pytest.raises(KernelError, match=words):
        WRONG[words]()


def test_a_token_that_does_not_count_may_have_any_target():
    loss, weight, _ = entropy((-100, 2), (0.0, 1.0))
    assert np.isfinite(loss) and weight == 1.0


def test_sizes_that_break_the_rule_under_jit_neither_fail_nor_reach_beyond_the_rows():
    compiled = jax.jit(grouped_matmul)
    out = compiled(LHS, RHS, jnp.array([4, 9], jnp.int32))
    assert out.shape == (6, 3) and np.isfinite(out).all()
