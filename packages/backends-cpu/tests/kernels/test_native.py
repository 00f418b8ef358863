"""The compiled decoding step over pages against the reference: masks, widths, pages, bits, and rows that broke."""

import concurrent.futures
import dataclasses
import functools
import platform
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.kernels import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.selection import supporting_kernels
from kanawa.testing.compare import compare_with_reference
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_cpu.kernels.attention import native
from kanawa_backends_cpu.kernels.attention.blockwise import BlockwiseAttention
from kanawa_backends_cpu.kernels.attention.invariant import InvariantAttention
from kanawa_backends_cpu.kernels.attention.native import NativeAttention
from kanawa_backends_cpu.kernels.attention.paged import PagedAttention
from kanawa_backends_cpu.native import available
from kanawa_kernel_tools.examples.attention import BASE, example_operands

pytest.importorskip("llvmlite")

from kanawa_backends_cpu.kernels.attention.native_code import Shape
from kanawa_backends_cpu.native import llvm

PAGED = dataclasses.replace(
    BASE, mode="decode", q_length=1, kv_length=64, page_size=16, head_dim=8, v_head_dim=8, has_kv_lengths=True
)
CHANGES = {
    "one head a key head": {},
    "grouped": {"num_heads": 12, "num_kv_heads": 2},
    "an item of three key heads": {"batch": 33, "num_heads": 12, "num_kv_heads": 6, "head_dim": 80, "v_head_dim": 80},
    "one key head": {"num_heads": 8, "num_kv_heads": 1, "head_dim": 64, "v_head_dim": 32},
    "odd widths": {"head_dim": 20, "v_head_dim": 48},
    "short pages": {"page_size": 3, "kv_length": 51},
    "pages of one token": {"page_size": 1, "kv_length": 40},
    "long pages": {"page_size": 32},
    "pages of 24": {"page_size": 24, "kv_length": 72},
    "all keys": {"mask": FULL},
    "window, cap, sinks": {"mask": sliding_window(5), "logit_cap": 2.0, "num_kv_heads": 2, "has_sinks": True},
    "wide window": {"mask": sliding_window(23)},
    "chunks, own positions": {"mask": MaskSpec(causal=True, chunk=16), "has_q_positions": True},
    "own positions": {"mask": CAUSAL, "has_q_positions": True},
    "both sides": {"mask": MaskSpec(window=(9, 2)), "has_q_positions": True},
}


@pytest.mark.parametrize("change", CHANGES)
def test_agrees_with_the_reference(change):
    problem = dataclasses.replace(PAGED, **CHANGES[change])
    assert NativeAttention().supports(problem, None)
    (agreement,) = compare_with_reference(NativeAttention(), [problem])
    assert agreement.errors and agreement.ok, agreement.describe()


class TestNative(KernelConformance):
    """Generated problems that it takes."""

    narrow: ClassVar = {"q_length": (1,), "page_size": (4, 16), "mode": ("decode",), "bias": (None,)}
    generated = 4

    def kernel(self):
        return NativeAttention()


def _paged(problem, seed=0):
    operands = example_operands(problem, np.random.default_rng(seed))
    operands["page_table"] = np.arange(operands["page_table"].size, dtype=np.int32).reshape(problem.batch, -1)
    operands["kv_lengths"] = np.full(problem.batch, 37, np.int32)
    return operands


def test_bits_are_read_as_bfloat16():
    problem = dataclasses.replace(PAGED, head_dim=64, v_head_dim=64, num_kv_heads=2)
    operands = _paged(problem)
    halves = {name: jnp.asarray(operands[name]).astype(jnp.bfloat16) for name in ("q", "k", "v")}
    wide = {**operands, **{name: x.astype(jnp.float32) for name, x in halves.items()}}
    expected, _ = NativeAttention().forward(problem, wide)
    bits = {name: jax.lax.bitcast_convert_type(halves[name], jnp.uint16) for name in ("k", "v")}
    given = {**operands, **bits, "q": halves["q"]}
    actual, _ = NativeAttention().forward(dataclasses.replace(problem, dtype="bfloat16", kv_bits=True), given)
    # Of bits, weights are rounded as well.
    np.testing.assert_allclose(np.float32(actual), expected, rtol=2**-7, atol=4e-3)


@pytest.mark.parametrize(
    ("kernel", "count"), [(NativeAttention(), 1), (PagedAttention(), 32), (InvariantAttention(), 32)]
)
def test_serving_rounds_where_training_does(kernel, count):
    length, size = 160, 16
    shape = {"batch": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "v_head_dim": 32, "dtype": "bfloat16"}
    trained = dataclasses.replace(BASE, **shape, q_length=length, kv_length=length, mask=CAUSAL)
    draw = np.random.default_rng(0)
    dense = {
        name: jnp.asarray(draw.normal(size=(2, length, heads, 32)), jnp.bfloat16)
        for name, heads in (("q", 4), ("k", 2), ("v", 2))
    }
    expected, _ = jax.jit(lambda x: BlockwiseAttention().forward(trained, x))(dense)
    paged = {
        "q_length": count, "mode": "decode" if count == 1 else "prefill", "page_size": size, "kv_bits": True,
        "has_kv_lengths": True,
    }  # fmt: skip
    bits = {name: jax.lax.bitcast_convert_type(dense[name].reshape(-1, size, 2, 32), jnp.uint16) for name in ("k", "v")}
    rows = {
        "q": dense["q"][:, -count:], "kv_lengths": jnp.full(2, length),
        "page_table": jnp.arange(2 * length // size, dtype=jnp.int32).reshape(2, -1),
    }  # fmt: skip
    served, _ = jax.jit(lambda x: kernel.forward(dataclasses.replace(trained, **paged), x))(bits | rows)
    # Rounded elsewhere, a third of the numbers would differ in their last bit.
    assert np.mean(np.asarray(served == expected[:, -count:])) > 0.97


@pytest.mark.parametrize("operand", ["k", "v", "q"])
def test_a_row_that_broke_says_so_and_no_other_changes(operand):
    operands = _paged(PAGED)
    broken = {**operands, operand: operands[operand].copy()}
    broken[operand][operands["page_table"][1, 0] if operand != "q" else 1, 0] = np.nan
    attend = jax.jit(functools.partial(NativeAttention().forward, PAGED))
    out, lse = zip(attend(broken), attend(operands), strict=True)
    assert np.isnan(out[0][1]).all()
    assert operand == "v" or np.isnan(lse[0][1]).all()
    np.testing.assert_array_equal(out[0][0], out[1][0])


def test_what_no_row_sees_is_never_read():
    # Pages behind a row's end and before its window belong to others, or to nobody.
    problem = dataclasses.replace(PAGED, mask=sliding_window(20))
    operands = _paged(problem)
    strange = {**operands, "k": np.full_like(operands["k"], np.nan), "v": np.full_like(operands["v"], np.nan)}
    for row in range(problem.batch):
        for key in range(17, 37):
            page = operands["page_table"][row, key // 16]
            for name in ("k", "v"):
                strange[name][page, key % 16] = operands[name][page, key % 16]
    for actual, expected in zip(*(NativeAttention().forward(problem, x) for x in (strange, operands)), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_rows_without_a_key_are_zero():
    operands = {**_paged(PAGED), "kv_lengths": np.array([0] + [5] * (PAGED.batch - 1), np.int32)}
    out, lse = NativeAttention().forward(PAGED, operands)
    assert not np.any(out[0]) and np.all(np.isneginf(lse[0])) and np.all(np.isfinite(lse[1:]))


def test_extreme_scores_are_those_of_the_other_kernel():
    operands = {name: jnp.asarray(x) for name, x in _paged(PAGED).items()}
    operands["q"] = operands["q"] * 300
    for problem in (PAGED, dataclasses.replace(PAGED, logit_cap=30.0)):
        actual, expected = (kernel.forward(problem, operands) for kernel in (NativeAttention(), PagedAttention()))
        for a, b in zip(actual, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_capped_score_that_overflowed_is_seen(sign):
    # All keys alike, so that every score is the cap's own: what is left is the mean of the values.
    problem = dataclasses.replace(PAGED, logit_cap=30.0)
    operands = _paged(problem)
    operands["q"], operands["k"] = np.full_like(operands["q"], sign * 1e38), np.full_like(operands["k"], 100.0)
    out, lse = NativeAttention().forward(problem, operands)
    np.testing.assert_allclose(lse, np.full(lse.shape, sign * 30.0 + np.log(37)), rtol=1e-5)
    seen = operands["v"][operands["page_table"][0]].reshape(-1, *operands["v"].shape[2:])[:37]
    means = np.repeat(seen.mean(axis=0), problem.group_size, axis=0)
    np.testing.assert_allclose(out[0, 0], means, rtol=1e-4, atol=1e-5)


def test_vmap_calls_it_for_each():
    operands = {name: jnp.asarray(x) for name, x in _paged(PAGED).items()}
    alone = functools.partial(NativeAttention().forward, PAGED)
    queries = jnp.stack([operands["q"], 2 * operands["q"]])
    outs, _ = jax.vmap(lambda q: alone({**operands, "q": q}))(queries)
    for out, q in zip(outs, queries, strict=True):
        np.testing.assert_array_equal(out, alone({**operands, "q": q})[0])


def test_threads_share_the_rows_of_many_programs():
    problem = dataclasses.replace(PAGED, batch=24, num_heads=8, num_kv_heads=4)
    operands = _paged(problem)
    attend = jax.jit(functools.partial(NativeAttention().forward, problem))
    out, _ = attend(operands)
    for _ in range(50):
        np.testing.assert_array_equal(attend(operands)[0], out)


def test_threads_may_trace_at_once():
    problem = dataclasses.replace(PAGED, head_dim=24, v_head_dim=24, logit_cap=7.5)
    operands = _paged(problem)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        tasks = [pool.submit(NativeAttention().forward, problem, operands) for _ in range(8)]
        outs = [task.result()[0] for task in tasks]
    for out in outs[1:]:
        np.testing.assert_array_equal(out, outs[0])


REFUSALS = {
    "keys are dense; it takes pages": {"page_size": None},
    "3 queries a row; it takes one": {"q_length": 3, "mode": "prefill"},
    "mask of prefix; it takes causal, window and chunk": {"mask": MaskSpec(causal=True, prefix=True)},
    "pages of bfloat16; it takes float32, or bits": {"dtype": "bfloat16"},
    "heads of 6 and 8; it takes multiples of 4": {"head_dim": 6},
    "8192 values a key head; it takes up to 4096": {"num_heads": 64, "num_kv_heads": 1, "v_head_dim": 128},
    "1000 vectors a key head; it takes up to 320": {"num_heads": 40, "num_kv_heads": 1, "v_head_dim": 100},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_says_what_it_does_not_take(reason):
    verdict = NativeAttention().supports(dataclasses.replace(PAGED, **REFUSALS[reason]), None)
    assert not verdict and reason in verdict.reason


def test_says_why_it_has_no_llvm_and_another_kernel_is_chosen(monkeypatch):
    monkeypatch.setattr(available, "why_not", lambda: "llvmlite is broken")
    verdict = NativeAttention().supports(PAGED, None)
    assert not verdict and verdict.reason == "llvmlite is broken"
    left = [kernel.name for kernel in supporting_kernels("attention", PAGED)]
    assert "attention.cpu.paged" in left and "attention.cpu.native" not in left


#: What becomes of a row's scores, one after the other.
ALL, LEAST = slice(None), np.finfo(np.float32).min
SEEN = {
    "finite": [],
    "all -inf": [(ALL, -np.inf)],
    "-inf for a block": [(slice(0, 17), -np.inf)],
    "inf first": [(3, np.inf)],
    "inf last": [(-1, np.inf)],
    "all -inf but one inf": [(ALL, -np.inf), (18, np.inf)],
    "NaN": [(2, np.nan)],
    "NaN and inf": [(2, np.nan), (18, np.inf)],
    "NaN, the rest -inf": [(ALL, -np.inf), (2, np.nan)],
    "NaN last": [(-1, np.nan)],
    "all the least float": [(ALL, LEAST)],
    "the least float and others": [(5, LEAST)],
}
SINKS = (0.5, -np.inf, np.inf, np.nan, -1e30)


@pytest.mark.parametrize("length", [20, 32], ids=["part of a block", "whole blocks"])
@pytest.mark.parametrize("cap", [None, 30.0])
@pytest.mark.parametrize("has_sinks", [False, True], ids=["no sinks", "sinks"])
@pytest.mark.parametrize("mask", [FULL, sliding_window(5)], ids=["all keys", "window"])
def test_numbers_that_are_not_finite_are_those_of_the_reference(mask, has_sinks, cap, length):
    """Scores of each row are what a case says, for each sink a head; by both ways of the kernel beside it, too."""
    problem = dataclasses.replace(
        PAGED, batch=len(SEEN), kv_length=32, head_dim=4, v_head_dim=4, num_heads=len(SINKS), num_kv_heads=len(SINKS),
        mask=mask, logit_cap=cap, has_sinks=has_sinks,
    )  # fmt: skip
    operands = _paged(problem)
    operands["kv_lengths"] = np.full(problem.batch, length, np.int32)
    operands["q"] = np.zeros_like(operands["q"])
    operands["q"][..., 0] = 1 / problem.scale
    keys = np.zeros((problem.batch, 32, len(SINKS), 4), np.float32)
    for row, changes in enumerate(SEEN.values()):
        scores = np.linspace(-1, 1, length, dtype=np.float32)
        for at, value in changes:
            scores[at] = value
        keys[row, :length, :, 0] = scores[:, None]
    operands["k"] = keys.reshape(-1, 16, len(SINKS), 4)
    if has_sinks:
        operands["sinks"] = np.asarray(SINKS, np.float32)
    given = {name: jnp.asarray(x) for name, x in operands.items()}
    expected = ReferenceAttention().forward(problem, given)
    for kernel in (NativeAttention(), PagedAttention()):
        for actual, right in zip(kernel.forward(problem, given), expected, strict=True):
            np.testing.assert_allclose(actual, right, rtol=1e-5, atol=1e-6)


@pytest.fixture
def lesser(monkeypatch, request):
    """Has functions compiled as if the processor at hand were a lesser one."""
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the names are those of x86")
    monkeypatch.setattr(llvm, "host", lambda: (request.param, ""))
    native.native_call.cache_clear()
    yield
    native.native_call.cache_clear()


@pytest.mark.parametrize("lesser", ["x86-64", "x86-64-v2", "x86-64-v3"], indirect=True)
@pytest.mark.parametrize("bits", [False, True], ids=["float32", "bits of bfloat16"])
def test_processors_with_narrower_vectors_agree(lesser, bits):
    problem = dataclasses.replace(
        PAGED, num_heads=6, num_kv_heads=2, head_dim=64, v_head_dim=48, mask=sliding_window(30), logit_cap=20.0
    )
    operands = _paged(problem)
    expected, _ = ReferenceAttention().forward(problem, {name: jnp.asarray(x) for name, x in operands.items()})
    tolerance = 1e-5
    if bits:
        for name in ("k", "v"):
            halves = jnp.asarray(operands[name]).astype(jnp.bfloat16)
            operands[name] = jax.lax.bitcast_convert_type(halves, jnp.uint16)
        problem, tolerance = dataclasses.replace(problem, dtype="bfloat16", kv_bits=True), 0.05
    actual, _ = NativeAttention().forward(problem, operands)
    np.testing.assert_allclose(actual.astype(jnp.float32), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("bits", [False, True], ids=["float32", "bits of bfloat16"])
def test_llvm_takes_it_for_arm(bits):
    shape = Shape(
        heads=4, together=2, group=2, width=64, v_width=48, lanes=16, v_lanes=16, page=16, bits=bits, cap=30.0
    )
    try:
        target = llvm.machine("aarch64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM was built without Arm")
    assembly = target.emit_assembly(llvm.optimised(native.native_call(shape).text, target))
    # Vectors of four floats, a product and a sum at once, and the cache line that is asked for ahead.
    assert "handler:" in assembly and "fmla" in assembly and "prfm" in assembly


def test_threads_may_run_it_at_once():
    problem = dataclasses.replace(PAGED, batch=8, num_heads=8, num_kv_heads=4)
    other = dataclasses.replace(problem, logit_cap=5.0, mask=sliding_window(9))
    operands = _paged(problem)
    attend = [jax.jit(functools.partial(NativeAttention().forward, each)) for each in (problem, other)]
    expected = [np.asarray(each(operands)[0]) for each in attend]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        outs = list(pool.map(lambda i: attend[i % 2](operands)[0], range(64)))
    for i, out in enumerate(outs):
        np.testing.assert_array_equal(out, expected[i % 2])
