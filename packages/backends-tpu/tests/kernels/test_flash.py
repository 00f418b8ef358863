"""Flash in Pallas's interpreter against the fp64 reference, what it visits, and what it refuses."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.masks import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.testing.compare import compare_with_reference
from kanawa_backends_tpu.kernels.attention.flash.kernel import FlashAttention, _scalar_bytes
from kanawa_backends_tpu.kernels.attention.flash.scalars import reach_of_blocks, tables, vectors
from kanawa_backends_tpu.kernels.attention.flash.tiles import Tiles, side
from named_masks import named_masks

from .interpreted_flash import Interpreted

PLAIN = AttentionProblem(
    batch=1,
    q_length=384,
    kv_length=384,
    num_heads=2,
    num_kv_heads=1,
    head_dim=64,
    v_head_dim=64,
    dtype="float32",
    mask=CAUSAL,
    scale=0.11,
)
PACKED = MaskSpec(causal=True, segments=True)
CACHE: dict[str, Any] = {"mode": "prefill", "has_kv_lengths": True, "q_length": 200}
#: What small generated problems hardly meet: several blocks of each side, whole ones and cut ones.
LARGER = {
    "causal": {"q_length": 512, "kv_length": 512},
    "full": {"mask": FULL, "q_length": 512, "kv_length": 512, "num_kv_heads": 2},
    "packed": {"mask": PACKED, "q_length": 512, "kv_length": 512, "batch": 2},
    "window": {"mask": sliding_window(100), "q_length": 768, "kv_length": 768, "num_heads": 1},
    "keys that nobody sees": {"kv_length": 768},
    "queries that see nothing": {"mask": sliding_window(8), "q_length": 768, "kv_length": 384, "has_sinks": True},
    "blocks seen whole or not at all": {"mask": MaskSpec(chunk=256), "q_length": 512, "kv_length": 256},
    "keys that nobody sees, none cut": {"mask": MaskSpec(chunk=256), "q_length": 256, "kv_length": 512},
    "ALiBi": {"has_alibi": True, "has_sinks": True, "q_length": 512, "kv_length": 512},
    "ALiBi both ways": {"has_alibi": True, "mask": FULL, "logit_cap": 5.0, "q_length": 512, "kv_length": 512},
    "ALiBi, positions": {"has_alibi": True, "has_q_positions": True, "has_kv_positions": True, "batch": 2},
    "bias": {"bias_shape": (1, 2, 384, 384), "logit_cap": 5.0},
    "bias that rows and heads share": {"bias_shape": (1, 1, 384, 384), "batch": 2, "mask": FULL},
    "bias of keys": {"bias_shape": (2, 1, 1, 384), "batch": 2, "mask": FULL},
    "bias of queries": {"bias_shape": (1, 2, 300, 1), "batch": 2, "has_sinks": True, "q_length": 300, "kv_length": 300},
    "bias of heads": {"bias_shape": (1, 2, 1, 1), "has_sinks": True},
    "dropout": {"dropout_rate": 0.4, "q_length": 512, "kv_length": 512, "batch": 2},
    "dropout with bias and ALiBi": {"dropout_rate": 0.2, "bias_shape": (1, 2, 384, 384), "has_alibi": True},
    "predicate": {"mask": MaskSpec(causal=True, predicates=("dilated",)), "q_length": 512, "kv_length": 512},
    "predicate of positions": {"mask": MaskSpec(predicates=("dilated",)), "has_q_positions": True, "batch": 2},
    "either of two": {"mask": MaskSpec(any_of=((MaskSpec(chunk=100), PACKED & sliding_window(40)),)), "batch": 2},
    "rows of a cache, ALiBi": {**CACHE, "has_alibi": True, "batch": 3},
    "rows of a cache, bias": {**CACHE, "bias_shape": (1, 2, 200, 384)},
    "rows of a cache, prefix": {**CACHE, "mask": MaskSpec(causal=True, prefix=True), "batch": 2},
}


@pytest.mark.parametrize("case", LARGER)
def test_rows_of_several_blocks(case):
    problem = dataclasses.replace(PLAIN, **LARGER[case])
    (agreement,) = compare_with_reference(Interpreted(), [problem])
    assert agreement.ok, agreement.describe()


def operands_of(problem: AttentionProblem) -> dict[str, Any]:
    random = np.random.default_rng(0)
    b, t, s, h, k = (getattr(problem, n) for n in ("batch", "q_length", "kv_length", "num_heads", "num_kv_heads"))
    shapes = {"q": (b, t, h, problem.head_dim), "k": (b, s, k, problem.head_dim), "v": (b, s, k, problem.v_head_dim)}
    return {name: jnp.asarray(random.normal(size=shape), problem.dtype) for name, shape in shapes.items()}


def test_backward_for_a_part_of_the_keys():
    """As ring attention calls it: out and log-sum-exp of all keys, gradient for half of them."""
    whole = dataclasses.replace(PLAIN, mask=FULL, q_length=256, kv_length=512)
    half = dataclasses.replace(whole, kv_length=256)
    kernel, reference, operands = Interpreted(), ReferenceAttention(), operands_of(whole)
    out, lse = reference.forward(whole, operands)
    dout = jnp.cos(3 * out)
    expected = reference.backward(whole, operands, out, lse, dout)
    parts = []
    for part in (slice(0, 256), slice(256, 512)):
        some = operands | {"k": operands["k"][:, part], "v": operands["v"][:, part]}
        parts.append(jax.jit(lambda o: kernel.backward(half, o, out, lse, dout))(some))
    close = {"rtol": 1e-4, "atol": 1e-4}
    np.testing.assert_allclose(parts[0]["q"] + parts[1]["q"], expected["q"], **close)
    for name in ("k", "v"):
        np.testing.assert_allclose(jnp.concatenate([p[name] for p in parts], axis=1), expected[name], **close)


def test_a_nan_behind_a_rows_end_reaches_nobody():
    problem = dataclasses.replace(PLAIN, **CACHE, has_alibi=True)
    operands = operands_of(problem) | {"kv_lengths": jnp.asarray([250]), "alibi_slopes": jnp.asarray([0.1, 0.2])}
    broken = {name: operands[name].at[:, 250:].set(jnp.nan) for name in ("k", "v")}
    clean, poisoned = (jax.jit(lambda o: Interpreted().apply(problem, o))(operands | some) for some in ({}, broken))
    np.testing.assert_array_equal(poisoned, clean)


def test_documents_of_a_packed_row_load_only_their_own_keys():
    """Two documents of 512 in a row of 1,024: of the ten pairs that causality leaves, four share nothing."""
    kernel = Interpreted()
    problem = dataclasses.replace(PLAIN, mask=PACKED, q_length=1024, kv_length=1024)
    ids = jnp.repeat(jnp.asarray([[1, 2]]), 512, axis=1)
    operands = operands_of(problem) | {"q_segment_ids": ids, "kv_segment_ids": ids}
    tiles = kernel._tiles(problem)
    steps = tiles.steps(queries_first=True)
    scalars = tables(problem, operands, tiles, steps, vectors(problem, operands, tiles), queries_first=True)
    some, every = reach_of_blocks(scalars, tiles, 1, 0, steps.q, steps.kv)
    assert len(steps) == 10
    assert int(np.sum(some)) == 6
    assert int(np.sum(every)) == 2
    loaded = np.asarray(scalars["fetched"])
    np.testing.assert_array_equal(loaded[np.asarray(some)], steps.kv[np.asarray(some)])
    # A block is loaded where it differs from the step before.
    assert 1 + int(np.sum(loaded[1:] != loaded[:-1])) <= 6


def striped(q, k):
    """A predicate, for the catalog: keys of the query's own stripe of 16, and every fifth one."""
    return (q // 16 == k // 16) | (k % 5 == 0)


def by_quarters(q, k):
    """Another, which leaves few blocks."""
    return q // 256 == k // 256


def gathers(q, k):
    """One that no kernel can compute."""
    return jnp.take(jnp.arange(2000), q) >= k


@pytest.fixture
def catalog():
    with named_masks(striped=striped, by_quarters=by_quarters, gathers=gathers):
        yield


@pytest.mark.usefixtures("catalog")
def test_a_predicate_that_divides():
    problem = dataclasses.replace(PLAIN, mask=CAUSAL & MaskSpec(predicates=("striped",)), has_q_positions=True)
    (agreement,) = compare_with_reference(Interpreted(), [problem])
    assert agreement.ok, agreement.describe()


@pytest.mark.usefixtures("catalog")
def test_blocks_that_a_predicate_hides_are_not_loaded():
    mask = CAUSAL & MaskSpec(predicates=("by_quarters",))
    problem = dataclasses.replace(PLAIN, mask=mask, q_length=1024, kv_length=1024)
    tiles = Interpreted()._tiles(problem)
    steps = tiles.steps(queries_first=True)
    given = vectors(problem, {}, tiles)
    scalars = tables(problem, {}, tiles, steps, given, queries_first=True)
    some, every = reach_of_blocks(scalars, tiles, 1, 0, steps.q, steps.kv)
    assert (len(steps), int(np.sum(some)), int(np.sum(every))) == (10, 4, 0)
    parts, _ = reach_of_blocks(scalars, tiles, 1, 0, steps.q, steps.kv, (0, 1))
    assert not np.any(parts), "the first half of a block of queries sees nothing of the second half of its keys"
    loaded = np.asarray(scalars["fetched"])
    assert 1 + int(np.sum(loaded[1:] != loaded[:-1])) == 4


@pytest.mark.usefixtures("catalog")
def test_a_predicate_that_reads_an_array_is_refused():
    verdict = FlashAttention().supports(dataclasses.replace(PLAIN, mask=MaskSpec(predicates=("gathers",))), None)
    assert not verdict
    assert "predicate 'gathers' " in verdict.reason
    assert "TPU" in verdict.reason or "a kernel only sees positions" in verdict.reason


MASKS = {
    "full": FULL,
    "causal": CAUSAL,
    "sliding": sliding_window(300),
    "two-sided": MaskSpec(window=(130, 270)),
    "open to the right": MaskSpec(window=(5, None)),
    "chunk": MaskSpec(causal=True, chunk=384),
    "chunk both ways": MaskSpec(chunk=256),
}


@pytest.mark.parametrize("name", MASKS)
def test_blocks_are_visited_if_the_mask_leaves_something(name):
    position = jnp.arange(1024)
    allowed = MASKS[name].allowed(position, position)
    allowed = np.ones((1024, 1024), bool) if allowed is None else np.asarray(allowed[0])
    tiles = Tiles(side(1024, 256, 128), side(1024, 256, 128), MASKS[name], known=True)
    left = allowed.reshape(4, 256, 4, 256).any(axis=(1, 3))
    assert not (left & ~tiles.seen).any()
    # Conditions are judged one by one, which may keep a pair in vain, but no more than that.
    assert tiles.seen.sum() <= left.sum() + 1
    assert tiles.has_cut_blocks == (not allowed.reshape(4, 256, 4, 256).all(axis=(1, 3))[left].all())


@pytest.mark.parametrize(("length", "block", "padded"), [(4096, 1024, 4096), (200, 256, 256), (1920, 640, 1920)])
def test_blocks_fit_lengths(length, block, padded):
    fitted = side(length, 1024, 512)
    assert (fitted.padded, fitted.block % fitted.part) == (padded, 0)
    assert fitted.block <= 1024


def test_what_is_worth_measuring_differs_from_the_kernels_own_choice():
    trained = dataclasses.replace(PLAIN, q_length=4096, kv_length=4096, head_dim=128, v_head_dim=128, dtype="bfloat16")
    kernel = FlashAttention()
    for tuning in kernel.tunings(trained, None):
        tuned = FlashAttention()
        tuned.tuning = tuning
        assert tuned._tiles(trained) != kernel._tiles(trained), tuning
    assert len(kernel.tunings(trained, None)) == 2
    assert kernel.tunings(PLAIN, None) == ()


REFUSALS = {
    "in pages": {"page_size": 16},
    "mode decode": {"mode": "decode"},
    "lengths are operands": {"has_kv_lengths": True, "mode": "prefill"},
    "dtype float16": {"dtype": "float16"},
    "head dim 320": {"head_dim": 320},
    "MiB a row in backward": {"q_length": 2**17, "kv_length": 2**17},
    # libtpu 0.0.52 for v5p: "Used 2.00M of 1.00M smem".
    "tables of 2052 KiB": {"mode": "prefill", "q_length": 2**19, "kv_length": 2**19},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason):
    problem = dataclasses.replace(PLAIN, **REFUSALS[reason])
    verdict = FlashAttention().supports(problem, None)
    assert not verdict
    assert reason in verdict.reason


DILATED = MaskSpec(causal=True, predicates=("dilated",))


@pytest.mark.parametrize("mask", [CAUSAL, PACKED, DILATED], ids=MaskSpec.describe)
def test_what_tables_are_counted_as_is_what_they_take(mask):
    problem = dataclasses.replace(PLAIN, mask=mask, q_length=700, kv_length=700, batch=2)
    ids = jnp.ones((2, 700), jnp.int32)
    operands = operands_of(problem) | {"q_segment_ids": ids, "kv_segment_ids": ids}
    tiles = Interpreted()._tiles(problem)
    given = vectors(problem, operands, tiles)
    made = tables(problem, operands, tiles, tiles.steps(queries_first=True), given, queries_first=True)
    assert sum(table.nbytes for table in made.values()) == _scalar_bytes(problem, tiles)


def test_a_window_narrower_than_a_part_computes_more_than_it_sees():
    causal = dataclasses.replace(PLAIN, q_length=8192, kv_length=8192, mask=CAUSAL)
    assert FlashAttention().computed(causal, None) == 1.0
    narrow, wide = (dataclasses.replace(causal, mask=sliding_window(size)) for size in (128, 2048))
    assert FlashAttention().computed(narrow, None) > 2 > FlashAttention().computed(wide, None) >= 1
