"""cuDNN over packed rows: what it would be asked for, and what an emulation of that gives.

cuDNN doesn't run here. The emulation follows JAX's documentation of the call: documents at offsets into the flattened
tokens, each attended on its own, a log-sum-exp per document, and nothing written elsewhere (NaN here).
"""

import dataclasses
import inspect
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from kanawa.kernels import MaskSpec, sliding_window
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa_backends_gpu.device import A100, H100
from kanawa_backends_gpu.kernels.attention import cudnn_packed
from kanawa_backends_gpu.kernels.attention.cudnn_packed import PackedCudnnAttention, SegmentRuns
from kanawa_backends_gpu.kernels.attention.pallas import PallasAttention
from kanawa_kernel_tools.examples.attention import example_operands

PACKED = MaskSpec(causal=True, segments=True)
PROBLEM = AttentionProblem(
    batch=2, q_length=48, kv_length=48, num_heads=2, num_kv_heads=1, head_dim=16, v_head_dim=16, dtype="bfloat16",
    mask=PACKED, scale=0.3,
)  # fmt: skip


class Interpreted(PallasAttention):
    interpret: ClassVar[bool] = True


class Packed(PackedCudnnAttention):
    other: ClassVar[PallasAttention] = Interpreted()
    tuning = (("documents", 5),)


def weights_of(q, k, v, none, q_lengths, kv_lengths, q_starts, kv_starts, *_: Any, **static: Any) -> SimpleNamespace:
    """Returns what the emulation of either call needs, from the call's own arguments."""
    # What JAX makes of the arguments before it hands them to cuDNN.
    lengths, _, starts, _ = cudnn._fix_seqlen_offsets(q_lengths, kv_lengths, q_starts, kv_starts, q, k)
    batch, rows, heads, width = q.shape
    lengths, starts = lengths.reshape(-1), starts.reshape(-1)[: lengths.size] // (heads * width)
    token = jnp.arange(batch * rows)
    inside = (token >= starts[:, None]) & (token < (starts + lengths)[:, None])
    run = jnp.where(inside.any(0), jnp.argmax(inside, 0), -1)
    place = token - starts[run]
    counts = (run[:, None] == run[None, :]) & (run >= 0)[:, None]
    if static["mask_type"] is cudnn.MaskType.CAUSAL:
        counts &= place[None, :] <= place[:, None]
    if static["sliding_window_length"]:
        counts &= place[None, :] > place[:, None] - static["sliding_window_length"]
    flat = [x.reshape(-1, *x.shape[2:]).astype(jnp.float32) for x in (q, k, v)]
    group = heads // k.shape[2]
    flat[1:] = [jnp.repeat(x, group, axis=1) for x in flat[1:]]
    scores = jnp.where(counts, jnp.einsum("thd,shd->hts", *flat[:2]) * static["scale"], -1e30)
    at = (jnp.where(run < 0, lengths.size, run), slice(None), place)
    return SimpleNamespace(scores=scores, counts=counts, flat=flat, run=run, at=at, runs=lengths.size, group=group)


def emulated_forward(*arrays: Any, is_training: bool, **static: Any) -> tuple[jax.Array, jax.Array]:
    assert is_training
    seen, (_, rows, heads, _) = weights_of(*arrays, **static), arrays[0].shape
    lse = jax.nn.logsumexp(seen.scores, axis=-1)
    out = jnp.einsum("hts,shd->thd", jnp.exp(seen.scores - lse[..., None]), seen.flat[2])
    out = jnp.where((seen.run >= 0)[:, None, None], out, jnp.nan)
    stats = jnp.full((seen.runs, heads, rows), jnp.nan).at[seen.at].set(lse.T, mode="drop")
    return out.reshape(arrays[0].shape).astype(arrays[0].dtype), stats


def emulated_backward(*args: Any, **static: Any) -> tuple[jax.Array, ...]:
    *arrays, stats, out, dout = args
    seen = weights_of(*arrays, **static)
    q, k, v = seen.flat
    lse = stats[seen.at].T
    probs = jnp.where(seen.counts, jnp.exp(seen.scores - lse[..., None]), 0.0)
    out, dout = (x.reshape(q.shape).astype(jnp.float32) for x in (out, dout))
    delta = jnp.sum(out * dout, axis=-1).T[..., None]
    dscores = probs * (jnp.einsum("thd,shd->hts", dout, v) - delta) * static["scale"]
    grads = [
        jnp.einsum("hts,shd->thd", dscores, k),
        jnp.einsum("hts,thd->shd", dscores, q),
        jnp.einsum("hts,thd->shd", probs, dout),
    ]
    summed = [grads[0], *(x.reshape(x.shape[0], -1, seen.group, x.shape[-1]).sum(2) for x in grads[1:])]
    nothing = (seen.run < 0)[:, None, None]
    pairs = zip(summed, arrays[:3], strict=True)
    return tuple(jnp.where(nothing, jnp.nan, x).reshape(like.shape).astype(like.dtype) for x, like in pairs)


@pytest.fixture
def _emulated(monkeypatch):
    for name, function in (("fwd", emulated_forward), ("bwd", emulated_backward)):
        primitive = SimpleNamespace(bind=function)
        monkeypatch.setattr(cudnn, f"_dot_product_attention_{name}_p_wrapper", primitive)
    monkeypatch.setattr(cudnn_packed, "cudnn_version", lambda: 91100)


IDS = {
    "as many as may be, padding between and after": [[1] * 9 + [0] * 3 + [2] * 20 + [5] + [6] * 9 + [7] * 4 + [0] * 2],
    "one document, and a row of padding": [[3] * 48, [0] * 48],
    "more documents than are asked for": [[i // 8 + 1 for i in range(48)], [1] * 48],
    "an id comes back": [[1] * 10 + [2] * 20 + [1] * 18],
    "ids that fall": [[7] * 10 + [3] * 38],
}
FITS = {"as many as may be, padding between and after", "one document, and a row of padding"}


def differences(mask: MaskSpec) -> Any:
    """Returns a program that compares, for segment ids, out and cotangents with the reference's, padding aside."""
    problem = dataclasses.replace(PROBLEM, mask=mask)
    operands = {name: jnp.asarray(x) for name, x in example_operands(problem, np.random.default_rng(0)).items()}
    dout = jax.random.normal(jax.random.key(0), operands["q"].shape, PROBLEM.dtype)

    @jax.jit
    def compare(ids: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        given = {**operands, "q_segment_ids": ids, "kv_segment_ids": ids}
        real = (ids != 0)[:, :, None, None]
        results, raw = [], []
        for kernel, dtype in ((Packed(), "bfloat16"), (ReferenceAttention(), "float32")):
            mine = {name: given[name].astype(dtype) for name in "qkv"}
            of_dtype = dataclasses.replace(problem, dtype=dtype)
            out, lse = kernel.forward(of_dtype, {**given, **mine})
            weighed = jnp.where(real, dout, 0).astype(dtype)
            grads = kernel.backward(of_dtype, {**given, **mine}, jnp.where(real, out, 0), lse, weighed)
            results.append({"out": jnp.where(real, out, 0), **grads})
            raw.append((out, lse))
        ours, right = results
        errors = {n: jnp.max(jnp.abs(ours[n] - right[n])) / jnp.max(jnp.abs(right[n])) for n in right}
        (out, lse), _ = raw
        clean = ~jnp.any(jnp.where(real, 0, out)) & jnp.all(jnp.isneginf(jnp.where(ids[:, None] == 0, lse, -jnp.inf)))
        fell_back = ~SegmentRuns.of_ids(ids, 5).fits
        return errors, clean | fell_back

    return compare


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize(
    "mask", [PACKED, pytest.param(sliding_window(7) & PACKED, marks=pytest.mark.nightly)], ids=MaskSpec.describe
)
def test_equals_the_reference_whatever_the_rows_hold(mask):
    compare = differences(mask)
    for case, rows in IDS.items():
        ids = jnp.asarray(rows * (3 - len(rows)), jnp.int32)
        assert bool(SegmentRuns.of_ids(ids, 5).fits) == (case in FITS), case
        errors, padding_is_zero = compare(ids)
        assert all(float(error) < 2e-2 for error in errors.values()), (case, errors)
        assert padding_is_zero, case


def test_the_calls_of_jax_are_the_ones_that_are_made():
    """A JAX that changes them fails here, not with a wrong gradient on a GPU."""
    arrays = ["query", "key", "value", "bias", "q_seqlen", "kv_seqlen", "q_offsets", "kv_offsets"]
    arrays += ["page_table_k", "page_table_v"]
    forward = list(inspect.signature(cudnn._dot_product_attention_fwd_impl).parameters)
    backward = list(inspect.signature(cudnn._dot_product_attention_bwd_impl).parameters)
    statics = set(cudnn_packed._static(PROBLEM))
    assert forward[:10] == arrays
    assert backward[:13] == [*arrays, "activation", "fwd_output", "grad_output"]
    assert statics <= set(forward)
    assert statics <= set(backward)
    assert "is_training" in forward


REFUSALS = {
    "aren't packed": {"mask": MaskSpec(causal=True)},
    "48 queries, 24 keys": {"kv_length": 24},
    "a single token": {"q_length": 1, "kv_length": 1},
    "32-bit": {"batch": 2**21},
    "head_dim 256": {"head_dim": 256, "v_head_dim": 256},
    "sinks": {"has_sinks": True},
    "mask has chunk": {"mask": MaskSpec(causal=True, chunk=8, segments=True)},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason):
    verdict = PackedCudnnAttention().supports(dataclasses.replace(PROBLEM, **REFUSALS[reason]), H100)
    assert not verdict
    assert reason in verdict.reason


def test_ampere_has_none():
    assert PackedCudnnAttention().supports(PROBLEM, H100)
    assert "Hopper" in PackedCudnnAttention().supports(PROBLEM, A100).reason
